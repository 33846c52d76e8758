"""What file servers do that no local disk does: names that stay, and clocks that are wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from extended import extended
from faulty_mount import FaultyMount, faulty_mount, needs_a_server
from half_a_run import HALF, Begun
from workload import EVEN, Undisturbed, assert_whole, request_of, run_job

from holdfast.checkpoint.store import CheckpointStore

pytestmark = [pytest.mark.mpi, needs_a_server]

LONGER = replace(EVEN, epochs=6)
HOUR_S = 3600


@pytest.mark.extended
def test_file_that_is_open_when_it_is_removed_keeps_its_directory_for_a_while(
    faulty: FaultyMount, begun: Begun, undisturbed: Undisturbed
) -> None:
    """It gets a hidden name, as NFS gives it ``.nfs…``, so the directory is not empty.

    Removals of all kinds fail in tests/checkpoint/test_call_failures.py.
    """
    run_dir = begun(faulty)
    store = CheckpointStore(faulty.served / "run")
    oldest = run_dir / "checkpoints" / f"step-{store.steps()[-1]:012d}"
    with next(oldest.glob("shard-*")).open("rb"):
        first = run_job(request_of(EVEN, run_dir, workers=2))
        left = [name for name in store.names() if not name.startswith("step-")]
    second = run_job(request_of(LONGER, run_dir, workers=2))

    assert_whole(first, EVEN, undisturbed(EVEN))
    assert left == [oldest.name.replace("step-", ".del-")]
    assert (second.exit_code, second.sha256) == (0, undisturbed(LONGER))
    assert [name for name in store.names() if not name.startswith("step-")] == []


@pytest.mark.parametrize("hours", [-9000, extended(9), extended(9000)])
def test_wrong_clock_of_a_server_changes_nothing(
    hours: int, tmp_path: Path, begun: Begun, undisturbed: Undisturbed
) -> None:
    with faulty_mount(tmp_path, clock_skew_s=hours * HOUR_S) as mounted:
        run_dir = begun(mounted)
        job = run_job(request_of(EVEN, run_dir, workers=2))

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert [record["step"] for record in job.events("restored")] == [HALF.steps]
    assert CheckpointStore(tmp_path / "served" / "run").steps()[0] == EVEN.steps
