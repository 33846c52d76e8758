"""Who has lost the run directory changes nothing in it any more, however late it wakes up."""

from __future__ import annotations

import signal
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from extended import extended
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

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.system.processes import is_alive, wait_all_ended
from holdfast.testing import start_job

pytestmark = pytest.mark.mpi

WITHIN_S = 60.0


@pytest.mark.extended  # the tests beside it kill both
@pytest.mark.parametrize("name", ["holdfast-writer", extended("holdfast-w0")])
def test_process_that_stands_still_in_a_save_does_not_outlive_its_agent(
    tmp_path: Path, undisturbed: Undisturbed, name: str
) -> None:
    """The host's writer commits and prunes; it is stopped, or a worker, and the job is lost then.

    It is dead before another job can have the lease, so waking it up wakes nobody.
    """
    with start_job(request_of(EVEN, tmp_path, workers=2)) as first:
        assert first.wait().exit_code == 0
    longer = replace(EVEN, epochs=40)
    request = request_of(longer, tmp_path, workers=2, faults=["stop worker=0 step=20 site=save"])
    with start_job(request) as old:
        old.wait_for("fault", kind="stop")
        processes = old.processes()
        (stopped,) = [pid for pid, found in processes.items() if found == name]
        old.signal(signal.SIGSTOP, name)
        old.signal(signal.SIGKILL)
        old.signal(signal.SIGKILL, "holdfast-agent")
        assert wait_all_ended(processes, WITHIN_S) == ()
        assert not is_alive(stopped)
        died = time.monotonic()
        generation = max(record.get("generation", 0) for record in old.journal)
        left = CheckpointStore(tmp_path).steps()[0]

        with start_job(request_of(longer, tmp_path, workers=2)) as new:
            job = new.wait()

    assert_whole(job, longer, undisturbed(longer))
    savers = ("worker", "snapshot writer")
    late = [r for r in job.journal if r["now"] > died and r["source"].startswith(savers)]
    assert min(record.get("generation", generation + 1) for record in late) > generation
    # The save of step 20 is complete without the worker, so it may be committed before the end.
    assert left in {EVEN.steps, 20}
    assert [record["step"] for record in job.events("restored")] == [EVEN.steps, left]


@pytest.mark.extended  # a head that is stopped runs in test_attach.py
def test_job_that_is_suspended_keeps_the_run_directory(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Its head lives, though stopped, as under a batch system that suspends a job."""
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
