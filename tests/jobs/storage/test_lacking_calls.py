"""File systems that lack calls: a run begins, saves and resumes without them, and tells it once."""

from __future__ import annotations

from pathlib import Path

import pytest
from faults import Rule
from faulty_mount import faulty_mount, needs_a_server
from workload import EVEN, Undisturbed, assert_whole, request_of, run_job

pytestmark = [pytest.mark.mpi, needs_a_server]

LACKING = (
    Rule(("fallocate",), error="EOPNOTSUPP"),
    Rule(("fsyncdir",), error="EINVAL"),
)
TOLD = [
    "a power cut may lose names: directories cannot be synced here (EINVAL)",
    "space cannot be reserved ahead: a full disk shows late",
]


@pytest.mark.extended  # tests/checkpoint lacks each call
def test_poorest_file_system_holds_a_run(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """It has no ``renameat2`` either: none that ``libfuse`` 2 makes has it."""
    with faulty_mount(tmp_path, tells_kinds=False) as mounted:
        mounted.set(*LACKING)
        job = run_job(request_of(EVEN, mounted.path / "run", workers=2))

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert sorted(record["reason"] for record in job.events("storage_downgrade")) == TOLD
    assert all(job.stderr.count(reason) == 1 for reason in TOLD)
    assert job.events("checkpoint_failed") == []
