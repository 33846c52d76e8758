"""Writes, syncs and renames that fail: saves say so, training goes on, older checkpoints stay."""

from __future__ import annotations

import pytest
from extended import extended
from faults import Rule
from faulty_mount import FaultyMount, needs_a_server
from half_a_run import HALF, STORE, Begun
from workload import EVEN, Undisturbed, assert_whole, request_of, run_job

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import ExitCode

pytestmark = [pytest.mark.mpi, needs_a_server]

STAGED = f"{STORE}.tmp-*"
CALLS = ("write", "fsync", "flush", "create", "mkdir", "rename", "fsyncdir")


@pytest.mark.parametrize("call", ["fsync", *(extended(call) for call in CALLS if call != "fsync")])
def test_call_that_fails_once_costs_one_save(
    call: str, faulty: FaultyMount, begun: Begun, undisturbed: Undisturbed
) -> None:
    run_dir = begun(faulty)
    faulty.set(Rule((call,), paths=STAGED, error="EIO", last=1))
    job = run_job(request_of(EVEN, run_dir, workers=2))

    assert_whole(job, EVEN, undisturbed(EVEN))
    (failed,) = job.events("checkpoint_failed")
    assert "Input/output error (EIO)" in failed["reason"]
    assert job.stderr.count(f"the checkpoint of step {failed['step']} failed") == 1
    assert CheckpointStore(faulty.served / "run").steps()[0] == EVEN.steps


@pytest.mark.parametrize(
    ("calls", "error"),
    [
        extended(("fsync", "flush"), "EDQUOT"),
        extended(("write", "fallocate"), "ENOSPC"),
        extended(("write", "create", "mkdir", "rename", "unlink", "rmdir"), "EROFS"),
        extended(("write",), "EIO"),
        extended(("rename",), "ESTALE"),
    ],
)
def test_file_system_that_takes_no_save_at_all_ends_the_job_after_its_last_step(
    calls: tuple[str, ...],
    error: str,
    faulty: FaultyMount,
    begun: Begun,
    undisturbed: Undisturbed,
) -> None:
    """The run goes on from the step that it had, once the file system takes saves again."""
    run_dir = begun(faulty)
    faulty.set(Rule(calls, paths=STORE, error=error))
    ended = run_job(request_of(EVEN, run_dir, workers=2))
    store = CheckpointStore(faulty.served / "run")
    left = store.scan(HALF.steps).verify()
    faulty.set()
    job = run_job(request_of(EVEN, run_dir, workers=2))

    assert ended.exit_code == ExitCode.STOPPED_EARLY, ended.stderr
    assert f"the checkpoint of step {EVEN.steps} could not be written" in ended.stderr
    assert f"({error})" in ended.events("checkpoint_failed")[0]["reason"]
    assert ended.report.steps == EVEN.steps
    assert ended.leftovers == ()
    assert left.step == HALF.steps
    assert (job.exit_code, job.sha256) == (0, undisturbed(EVEN))
