"""Mistakes in a script end the job at once, with the script's own traceback, once."""

from __future__ import annotations

from pathlib import Path

import pytest
from extended import extended
from workload import assert_refused, run_job

from holdfast.testing import JobRequest, JobRun

pytestmark = pytest.mark.mpi

MISTAKES = Path(__file__).parent / "scripts" / "mistakes.py"


def _run(run_dir: Path, *argv: str, script: Path = MISTAKES) -> JobRun:
    return run_job(JobRequest(script=script, run_dir=run_dir, workers=3, argv=argv))


def test_a_loss_that_is_not_finite_stops_before_it_is_applied(tmp_path: Path) -> None:
    job = _run(tmp_path, "not finite")

    assert_refused(job, 1, "not finite", "step", "loss inf")
    assert job.report.relaunches == ()
    assert job.report.steps < 4  # the bad sample is one of the 20 of the first epoch
    assert [saved.step for saved in job.report.checkpoints[-1:]] == [job.report.steps]


@pytest.mark.parametrize("mistake", ["raise", extended("raise late")])
def test_an_exception_everywhere_is_shown_once(tmp_path: Path, mistake: str) -> None:
    job = _run(tmp_path, mistake)

    assert job.exit_code == 1, job.stderr
    assert job.stderr.count("Traceback") == 1
    assert job.stderr.count('raise ValueError("this script has') == 1
    assert job.stderr.endswith("holdfast: error: ValueError: this script has a mistake\n")
    assert "holdfast/runtime" not in job.stderr
    assert job.report.relaunches == ()
    assert job.leftovers == ()


def test_a_sample_that_kills_whoever_takes_it_is_the_scripts_mistake(tmp_path: Path) -> None:
    job = _run(tmp_path, "bad sample")

    assert job.exit_code == 1, job.stderr
    assert job.stderr.count("Traceback") == 1
    assert job.stderr.endswith("holdfast: error: ValueError: this sample is bad\n")
    assert "holdfast/runtime" not in job.stderr
    assert sorted(failure.worker for failure in job.report.failures) == [0, 1, 2]
    assert job.report.relaunches == ()
    assert job.leftovers == ()


def test_a_syntax_error_is_shown_once(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('begins')\ndef train(:\n")

    job = _run(tmp_path / "run", script=script)

    assert job.exit_code == 1, job.stderr
    assert job.stderr.count("def train(:") == 1
    assert "SyntaxError" in job.stderr.splitlines()[-1]
    assert "holdfast/runtime" not in job.stderr
    assert "runpy" not in job.stderr
    assert job.report.relaunches == ()
    assert job.leftovers == ()


def test_a_script_that_trains_nothing_is_told_so(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('nothing to do')\n")

    job = _run(tmp_path / "run", script=script)

    assert job.exit_code == 1, job.stderr
    assert "trained nothing: it has to call model.fit(...)" in job.stderr
    assert job.leftovers == ()
