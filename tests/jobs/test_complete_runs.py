"""A complete run that is started again: nothing is, unless something has changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from workload import EVEN, SCRIPT, request_of

from holdfast.testing import JobRun, start_job

pytestmark = pytest.mark.mpi


def job(folder: Path, *options: str, workers: int = 2) -> JobRun:
    """Run the job as a user does; a test wants its script run, unless it says otherwise."""
    as_users = {"HOLDFAST_AGAIN": "no"}
    asked = request_of(EVEN, folder / "run", workers=workers, options=options, environment=as_users)
    asked = replace(asked, script=folder / "train.py", directory=folder)
    with start_job(asked) as running:
        return running.wait()


def test_complete_run_starts_nothing_until_it_is_asked_to(tmp_path: Path) -> None:
    leaves_a_file = "\n    open('result.txt', 'w').write('done')\n"
    (tmp_path / "train.py").write_text(f"{SCRIPT.read_text().rstrip()}{leaves_a_file}")

    first = job(tmp_path, "--fresh")
    assert first.exit_code == 0, first.stderr

    second = job(tmp_path, workers=1)
    assert (second.exit_code, second.stdout) == (0, "")
    assert "nothing to do: " in second.stderr
    assert f"has completed step {EVEN.steps}, state sha256 " in second.stderr
    assert len(second.events("job_started")) == 1

    (tmp_path / "result.txt").unlink()  # which the script has left, and would leave again
    third = job(tmp_path)
    assert third.exit_code == 0, third.stderr
    assert "runs again, because result.txt, which it has written, is gone" in third.stderr
    assert len(third.events("job_started")) == 2
    assert third.stdout == f"{first.stdout.splitlines()[-1]}\n"
