"""A new run begins with given weights, and ends with the same bytes on any number of workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from workload import EVEN, request_of, run_job

from holdfast.testing import JobRun

pytestmark = pytest.mark.mpi

HOLDFAST = (sys.executable, "-c", "from holdfast.runtime.commands.main import main; main()")


def begin(run_dir: Path, weights: Path, workers: int) -> JobRun:
    options = ["--initial", str(weights)]
    return run_job(request_of(EVEN, run_dir, workers=workers, options=options))


def test_run_begins_with_the_weights_of_another_one_or_of_its_file(tmp_path: Path) -> None:
    """Those that the other run has ended with."""
    other = run_job(request_of(EVEN, tmp_path / "other", workers=1))
    line = [*HOLDFAST, "export", str(tmp_path / "other"), "--to", str(tmp_path / "w.npz")]
    subprocess.run(line, check=True, capture_output=True)

    begun = begin(tmp_path / "file", tmp_path / "w.npz", 1)
    again = begin(tmp_path / "run", tmp_path / "other", 2)

    assert (begun.exit_code, again.exit_code) == (0, 0), begun.stderr + again.stderr
    assert begun.sha256 == again.sha256 != other.sha256
    first, second = (job.events("initial_weights")[0] for job in (begun, again))
    assert first["sha256"] == second["sha256"]
    assert second["source"] == str(tmp_path / "other")
