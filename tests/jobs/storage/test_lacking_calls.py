"""File systems that lack calls: a run begins, saves and resumes without them, and tells it once."""

from __future__ import annotations

from pathlib import Path

import pytest
from extended import extended
from faults import Rule
from faulty_mount import FaultyMount, faulty_mount, needs_a_server
from workload import EVEN, Undisturbed, assert_whole, request_of

from holdfast.testing import JobRun, start_job

pytestmark = [pytest.mark.mpi, needs_a_server]

LACKING = {
    "fallocate": Rule(("fallocate",), error="EOPNOTSUPP"),
    "fallocate of an old kernel": Rule(("fallocate",), error="ENOSYS"),
    "fsync of a directory": Rule(("fsyncdir",), error="EINVAL"),
}
TOLD = {
    "fallocate": {"space cannot be reserved ahead: a full disk shows late"},
    "fallocate of an old kernel": {"space cannot be reserved ahead: a full disk shows late"},
    "fsync of a directory": {
        "a power cut may lose names: directories cannot be synced here (EINVAL)"
    },
}


def _told(job: JobRun) -> list[str]:
    return sorted(record["reason"] for record in job.events("storage_downgrade"))


@pytest.mark.extended  # tests/checkpoint lacks each call
def test_poorest_file_system_holds_a_run(tmp_path: Path, undisturbed: Undisturbed) -> None:
    """It has no ``renameat2`` either: none that ``libfuse`` 2 makes has it."""
    with faulty_mount(tmp_path, tells_kinds=False) as mounted:
        mounted.set(*LACKING.values())
        with start_job(request_of(EVEN, mounted.path / "run", workers=2)) as running:
            job = running.wait()

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert _told(job) == sorted(set().union(*TOLD.values()))
    assert all(job.stderr.count(reason) == 1 for reason in _told(job))
    assert job.events("checkpoint_failed") == []


@pytest.mark.parametrize("call", [extended(call) for call in LACKING])
def test_lacking_call_is_done_without_and_told_once(
    call: str, faulty: FaultyMount, undisturbed: Undisturbed
) -> None:
    faulty.set(LACKING[call])
    with start_job(request_of(EVEN, faulty.path / "run", workers=2)) as running:
        job = running.wait()

    assert faulty.struck() > 0
    assert_whole(job, EVEN, undisturbed(EVEN))
    assert _told(job) == sorted(TOLD[call])
