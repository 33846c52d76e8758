"""A run directory that is taken from a living job: the job ends, and leaves what is there alone."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from workload import LONG, Undisturbed, assert_whole, request_of, run_job

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.testing import RunningJob, start_job

pytestmark = pytest.mark.mpi


def test_job_whose_directory_another_run_has_taken_leaves_that_run_alone(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Nobody shows the first job, and it writes nothing before the next run has begun."""
    run_dir = tmp_path / "run"
    request = request_of(LONG, run_dir, workers=2)
    with start_job(request) as first:
        first.wait_for("checkpoint")
        os.kill(first.pid, signal.SIGKILL)
        theirs = [pid for pid in first.processes() if pid != first.pid]
        _signal(theirs, signal.SIGSTOP)
        shutil.rmtree(run_dir)
        with start_job(request) as running:
            running.wait_for("launch")
            _signal(theirs, signal.SIGCONT)
            second = running.wait()

        assert_whole(second, LONG, undisturbed(LONG))
        _wait_for_its_end(first)

    _assert_one_run(run_dir)


@pytest.mark.extended  # the test beside it has another run
def test_job_whose_directory_was_moved_away_for_another_one_ends_with_76(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run_dir, moved = tmp_path / "run", tmp_path / "moved"
    request = request_of(LONG, run_dir, workers=2)
    with start_job(request) as running:
        running.wait_for("checkpoint")
        theirs = [*running.processes()]
        _signal(theirs, signal.SIGSTOP)  # else it sees the place empty
        run_dir.rename(moved)
        with start_job(request) as other:
            other.wait_for("launch")
            _signal(theirs, signal.SIGCONT)
            first = running.wait()
            second = other.wait()

    assert (first.exit_code, first.leftovers) == (76, ())
    (sentence,) = [line for line in first.stderr.splitlines() if "error: " in line]
    assert f"{run_dir} belongs to run " in sentence
    assert "this job ends, and leaves it alone" in sentence
    assert_whole(second, LONG, undisturbed(LONG))
    _assert_one_run(run_dir)

    third = run_job(request_of(LONG, moved, workers=2))
    assert (third.exit_code, third.sha256) == (0, undisturbed(LONG)), third.stderr


@pytest.mark.extended  # the test beside it has another run
def test_job_whose_directory_was_removed_ends_with_70_and_makes_none(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start_job(request_of(replace(LONG, pause_ms=300), run_dir, workers=2)) as running:
        running.wait_for("checkpoint")
        run_dir.rename(tmp_path / "gone")
        shutil.rmtree(tmp_path / "gone", ignore_errors=True)
        job = running.wait()

    assert (job.exit_code, job.leftovers) == (70, ())
    (sentence,) = [line for line in job.stderr.splitlines() if "error: " in line]
    assert f"{run_dir} was removed or moved, or its RUN.json was: this job cannot" in sentence
    assert not run_dir.exists()


def _assert_one_run(run_dir: Path) -> None:
    record = RunDirectory(run_dir).load_record()
    assert record is not None
    store = CheckpointStore(run_dir)
    assert {store.scan(step).manifest().run_id for step in store.steps()} == {record.run_id}
    assert store.steps()[0] == LONG.steps
    journal = (run_dir / "journal.jsonl").read_text()
    assert journal.count('"run_id"') == journal.count(f'"run_id": "{record.run_id}"')


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)


def _wait_for_its_end(job: RunningJob) -> None:
    while job.processes():
        pass
