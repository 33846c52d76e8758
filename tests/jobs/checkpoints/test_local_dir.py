"""Jobs whose saves go to a disk of the host first, and from there to the run directory."""

from __future__ import annotations

import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from workload import EVEN, LONG, Undisturbed, assert_whole, request_of, wait_for_checkpoints

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import JobRun, start_job

pytestmark = pytest.mark.mpi

NEVER = "1000"


def options_of(base: Path, drain_every: str = NEVER) -> list[str]:
    return ["--local-dir", str(base / "local"), "--drain-every", drain_every]


def in_run(job: JobRun) -> list[int]:
    """Return the steps that were saved to the run directory at once."""
    return [record["step"] for record in job.events("checkpoint") if "place" not in record]


def killed_whole(base: Path) -> JobRun:
    """Run a job whose workers all die in the middle, and return how it has ended."""
    faults = [f"kill worker={worker} step=12 site=reduce" for worker in range(3)]
    options = options_of(base)
    request = request_of(EVEN, base / "run", workers=3, faults=faults, options=options)
    with start_job(request) as running:
        return running.wait()


def test_relaunch_takes_the_newest_step_of_both_places(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The run directory has no step yet when all workers die."""
    job = killed_whole(tmp_path)

    assert_whole(job, EVEN, undisturbed(EVEN))
    (restored,) = job.events("restored")
    assert restored["step"] > 0
    assert job.events("mended") == [], "it was read where it was"
    assert in_run(job)[-1] == EVEN.steps
    assert verify_step(CheckpointStore(tmp_path / "run"), EVEN.steps).is_valid


def test_resumed_job_drains_the_step_that_it_has_resumed_from(tmp_path: Path) -> None:
    """The host may be gone before the next drain is due."""
    endless = replace(LONG, epochs=10**6, save_every=10**9)
    faults = [f"kill worker={worker} step=20 site=reduce" for worker in range(2)]
    options = [*options_of(tmp_path), "--save-every", "15"]
    request = request_of(endless, tmp_path / "run", workers=2, faults=faults, options=options)
    with start_job(request) as running:
        restored = running.wait_for("restored")
        drained = running.wait_for("drained")
        running.signal(signal.SIGTERM)
        assert running.wait().exit_code == 75

    assert restored["step"] == 15
    assert drained["step"] >= 15
    assert verify_step(CheckpointStore(tmp_path / "run"), drained["step"]).is_valid


def test_signal_brings_the_newest_step_into_the_run_directory(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The host is gone afterwards, with its local directory."""
    request = request_of(LONG, tmp_path / "run", workers=2, options=options_of(tmp_path))
    with start_job(request) as running:
        wait_for_checkpoints(running, 1)
        running.signal(signal.SIGTERM)
        stopped = running.wait()
    assert stopped.exit_code == 75, stopped.stderr
    shutil.rmtree(tmp_path / "local")

    with start_job(request_of(LONG, tmp_path / "run", workers=2)) as running:
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    (restored,) = job.events("restored")
    assert [restored["step"]] == in_run(stopped)


def test_steps_drain_while_training_goes_on(tmp_path: Path, undisturbed: Undisturbed) -> None:
    options = options_of(tmp_path, drain_every="2")
    with start_job(request_of(LONG, tmp_path / "run", workers=2, options=options)) as running:
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    drained = [record["step"] for record in job.events("drained")]
    assert drained, "on a busy host one drain may stand for several"
    assert LONG.steps in {*drained, *in_run(job)}, "it may drain before the job asks for it"
    assert set(CheckpointStore(tmp_path / "run").steps()) <= {*drained, *in_run(job)}
    assert len(list((tmp_path / "local").iterdir())) == 1


def test_local_directory_that_cannot_be_made_costs_no_save(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """All saves go to the run directory instead, and workers that die find them there."""
    (tmp_path / "local").write_text("a file")
    job = killed_whole(tmp_path)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert job.events("restored")[0]["step"] > 0
    assert len(job.events("local_failed")) == len(job.events("checkpoint")) - 1, "but the last"
    assert job.events("checkpoint_failed") == []
    told = job.stderr.count("and saves go to the run directory until it does")
    assert told == len(job.events("launch")) == 2
    assert verify_step(CheckpointStore(tmp_path / "run"), EVEN.steps).is_valid
