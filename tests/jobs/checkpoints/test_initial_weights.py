"""A new run begins with given weights, and ends with the same bytes on any number of workers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from workload import EVEN, assert_refused, request_of, run_job

from holdfast.testing import JobRequest, JobRun

pytestmark = pytest.mark.mpi

SCRIPTS = Path(__file__).parents[1] / "scripts"
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


@pytest.mark.extended  # the test above has the job, runtime/model/test_files.py Keras's files
@pytest.mark.tensorflow
def test_keras_begins_with_its_own_file_and_refuses_that_of_another_model(tmp_path: Path) -> None:
    write = [sys.executable, str(SCRIPTS / "keras_weights.py"), str(tmp_path)]
    subprocess.run(write, check=True, capture_output=True)

    def train(workers: int, name: str) -> JobRun:
        request = JobRequest(
            script=SCRIPTS / "everything_keras.py",
            run_dir=tmp_path / f"{name}-{workers}",
            workers=workers,
            microbatches=3,
            argv=["--epochs", "2"],
            options=["--threads", "1", "--initial", str(tmp_path / f"{name}.weights.h5")],
        )
        return run_job(request, timeout_s=300)

    one, two, refused = train(1, "w"), train(2, "w"), train(1, "other")

    assert (one.exit_code, two.exit_code) == (0, 0), one.stderr + two.stderr
    assert one.sha256 == two.sha256
    assert_refused(refused, 2, "another model's weights: 'weights/", "were not set")
