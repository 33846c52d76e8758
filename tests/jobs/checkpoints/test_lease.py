"""Who has lost the run directory changes nothing in it any more, however late it wakes up."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from workload import (
    EVEN,
    IMPATIENT,
    LONG,
    PreparedJob,
    Undisturbed,
    assert_refused,
    assert_whole,
    request_of,
)

from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.runtime.system.process_status import is_alive
from holdfast.runtime.system.processes import wait_all_ended
from holdfast.testing import start_job

pytestmark = pytest.mark.mpi

WITHIN_S = 60.0


def test_worker_that_stands_still_in_a_save_does_not_outlive_its_agent(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Rank 0 commits and prunes; it stops in the middle of a save, and loses its job then.

    It is dead before another job can have the lease, so waking it up wakes nobody.
    """
    with start_job(request_of(EVEN, tmp_path, workers=2)) as first:
        assert first.wait().exit_code == 0
    longer = replace(EVEN, epochs=40)
    request = request_of(longer, tmp_path, workers=2, faults=["stop worker=0 step=20 site=save"])
    with start_job(request) as old:
        old.wait_for("fault", kind="stop")
        processes = old.processes()
        (stopped,) = [pid for pid, name in processes.items() if name == "holdfast-w0"]
        old.signal(signal.SIGKILL)
        old.signal(signal.SIGKILL, "holdfast-agent")
        assert wait_all_ended(processes, WITHIN_S) == ()
        assert not is_alive(stopped)
        died = time.monotonic()
        generation = max(record.get("generation", 0) for record in old.journal)
        assert CheckpointStore(tmp_path).steps()[0] == EVEN.steps

        with start_job(request_of(longer, tmp_path, workers=2)) as new:
            job = new.wait()

    assert_whole(job, longer, undisturbed(longer))
    late = [r for r in job.journal if r["now"] > died and r["source"].startswith("worker")]
    assert min(record.get("generation", generation + 1) for record in late) > generation
    assert [record["step"] for record in job.events("restored")] == [EVEN.steps] * 2


def test_job_that_is_suspended_keeps_the_run_directory(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Its supervisor lives, though stopped, as under a batch system that suspends a job."""
    request = request_of(LONG, tmp_path, workers=2)
    with start_job(request) as old:
        old.wait_for("checkpoint")
        old.signal(signal.SIGSTOP)
        old.signal(signal.SIGSTOP, "holdfast-agent")
        with start_job(PreparedJob(**asdict(request), preparation=IMPATIENT)) as new:
            assert_refused(new.wait(), 76, "does not answer", "kill -CONT")
        old.signal(signal.SIGCONT, "holdfast-agent")
        old.signal(signal.SIGCONT)
        job = old.wait()

    assert_whole(job, LONG, undisturbed(LONG))
