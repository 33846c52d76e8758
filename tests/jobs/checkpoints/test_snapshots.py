"""A save that is complete in memory becomes durable after any death."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from workload import EVEN, LONG, Undisturbed, assert_whole, request_of, run_job

from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import start_job

pytestmark = pytest.mark.mpi


def test_snapshots_of_a_job_that_died_whole_are_what_it_is_relaunched_from(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """All die in the step after a save: no worker was left to commit it."""
    faults = [f"kill worker={worker} step=6 site=reduce" for worker in range(4)]
    job = run_job(request_of(EVEN, tmp_path, workers=4, faults=faults))

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert len(job.report.relaunches) == 1
    restored = [record["step"] for record in job.journal if record["event"] == "restored"]
    assert restored == [5]


def test_save_that_a_dead_worker_has_not_copied_is_none(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Worker 1 dies between the vote on step 5 and its save, all others when they notice."""
    faults = ["kill worker=1 step=5 site=apply"]
    faults += [f"kill worker={worker} step=6 site=repair" for worker in (0, 2, 3)]
    job = run_job(request_of(EVEN, tmp_path, workers=4, faults=faults))

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert len(job.report.relaunches) == 1
    assert not [record["step"] for record in job.journal if record["event"] == "restored"]


def test_death_of_the_writer_costs_a_checkpoint_at_most(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with start_job(request_of(LONG, tmp_path, workers=2)) as running:
        running.wait_for("checkpoint")
        running.signal(signal.SIGKILL, "holdfast-writer")
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert not job.report.relaunches
    assert CheckpointStore(tmp_path).steps()[0] == LONG.steps
