"""A run that is complete starts nothing until it is asked to; no other script takes it over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from workload import EVEN, SCRIPT, request_of, run_job

from holdfast.testing import JobRun

pytestmark = pytest.mark.mpi


def job(script: Path, run_dir: Path, *options: str, workers: int = 2) -> JobRun:
    """Run the job as a user does; a test wants its script run, unless it says otherwise."""
    as_users = {"HOLDFAST_AGAIN": "no"}
    asked = request_of(EVEN, run_dir, workers=workers, options=options, environment=as_users)
    return run_job(replace(asked, script=script, directory=run_dir.parent))


def test_complete_run_starts_nothing_until_it_is_asked_to(tmp_path: Path) -> None:
    script, run_dir = tmp_path / "train.py", tmp_path / "run"
    script.write_text(SCRIPT.read_text())

    first = job(script, run_dir, "--fresh")
    assert first.exit_code == 0, first.stderr

    second = job(script, run_dir, workers=1)
    assert (second.exit_code, second.stdout) == (0, "")
    assert "nothing to do: " in second.stderr
    assert f"has completed step {EVEN.steps}, state sha256 " in second.stderr
    assert len(second.events("job_started")) == 1

    third = job(script, run_dir, "--again")
    assert third.exit_code == 0, third.stderr
    assert third.stdout == f"{first.stdout.splitlines()[-1]}\n"

    script.with_name("helper.py").write_text("A = 1")
    script.write_text(f"{SCRIPT.read_text()}\nimport helper\n")
    fourth = job(script, run_dir)
    assert fourth.exit_code == 0, fourth.stderr
    assert "train.py has changed since this run began" in fourth.stderr
    assert len(fourth.events("job_started")) == 3

    script.with_name("helper.py").write_text("A = 2")
    fifth = job(script, run_dir)
    assert fifth.exit_code == 0, fifth.stderr
    assert len(fifth.events("job_started")) == 4


def test_script_of_the_same_name_does_not_take_a_run_over(tmp_path: Path) -> None:
    scripts = [tmp_path / name / "train.py" for name in ("exp1", "exp2")]
    for script in scripts:
        script.parent.mkdir()
        script.write_text(SCRIPT.read_text())
    run_dir = tmp_path / "holdfast-train"
    first = job(scripts[0], run_dir)
    assert first.exit_code == 0, first.stderr

    second = job(scripts[1], run_dir)

    assert (second.exit_code, second.stdout) == (2, "")
    assert f"{run_dir} holds the run of {scripts[0]}: give {scripts[1]} a run" in second.stderr
    assert "--run-dir" in second.stderr
    assert len(second.events("job_started")) == 1
    own = job(scripts[1], tmp_path / "own")
    assert (own.exit_code, own.sha256) == (0, first.sha256)
