"""A run that is made of Keras's files goes on as one that began with them.

On any number of workers, and to the same bytes.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from extended import shortened
from imports import ImportRequest
from workload import assert_refused

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run import progress
from holdfast.testing import JobRequest, JobRun, RunningJob, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPTS = Path(__file__).parents[1] / "scripts"
SCRIPT = SCRIPTS / "everything_keras.py"
MICROBATCHES = 3
THREADS = ("--threads", "1")
EPOCHS = ("--epochs", "2")


def start_import(weights: Path, run_dir: Path, *options: str) -> RunningJob:
    request = ImportRequest(
        script=SCRIPT,
        run_dir=run_dir,
        microbatches=MICROBATCHES,
        argv=EPOCHS,
        options=[*THREADS, *options],
        weights=weights,
    )
    return start_job(request, timeout_s=300)


def import_into(run_dir: Path, weights: Path, *options: str) -> JobRun:
    with start_import(weights, run_dir, *options) as running:
        return running.wait()


def train(run_dir: Path, workers: int, *argv: str) -> JobRun:
    request = JobRequest(
        script=SCRIPT,
        run_dir=run_dir,
        workers=workers,
        microbatches=MICROBATCHES,
        argv=[*EPOCHS, *argv],
        options=THREADS,
    )
    with start_job(request, timeout_s=300) as running:
        return running.wait()


@dataclass(frozen=True)
class Weights:
    """Weights of Keras, and what a run that begins with them comes to."""

    keras: Path
    other: Path
    """Those of another model."""
    sha256: str
    steps: int


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("imports")


@pytest.fixture(scope="module")
def weights(folder: Path) -> Weights:
    keras = folder / "w.weights.h5"
    write = [sys.executable, str(SCRIPTS / "keras_weights.py"), str(folder)]
    subprocess.run(write, check=True, capture_output=True)
    begun = train(folder / "begun", 1, "--initial", str(keras))
    assert begun.exit_code == 0, begun.stderr
    assert begun.sha256 is not None
    other = folder / "other.weights.h5"
    return Weights(keras, other, begun.sha256, begun.report.steps)


@pytest.fixture(scope="module")
def import_job(folder: Path, weights: Weights) -> JobRun:
    """An import of the Keras file."""
    return import_into(folder / "imported", weights.keras)


@pytest.fixture
def imported(folder: Path, import_job: JobRun) -> Path:
    """The run directory of that import, in which nothing was trained yet."""
    assert import_job.exit_code == 0, import_job.stderr
    return folder / "imported"


@pytest.mark.parametrize("workers", shortened([1, 2, 3], here=[2]))
def test_run_made_of_a_keras_file_ends_with_the_same_bytes(
    workers: int, imported: Path, weights: Weights, tmp_path: Path
) -> None:
    run_dir = shutil.copytree(imported, tmp_path / "run")

    job = train(run_dir, workers)

    assert job.exit_code == 0, job.stderr
    assert job.sha256 == weights.sha256
    assert [record["step"] for record in job.events("restored")] == [0]
    assert (job.report.steps, job.report.jobs) == (weights.steps, 2)
    assert all(epoch.exact for epoch in job.report.epochs)


def test_import_says_what_it_has_made(import_job: JobRun, imported: Path, weights: Weights) -> None:
    job, store = import_job, CheckpointStore(imported)

    said = job.stdout.splitlines()
    manifest = store.scan(0).manifest()
    nbytes = sum(spec.nbytes for spec in manifest.specs)
    assert job.leftovers == ()
    assert store.steps() == (0,)
    assert said[0].endswith(f"has the weights of {weights.keras}, verified")
    assert said[1].startswith(f"{len(manifest.specs)} tensors, ")
    assert said[1].endswith(f" of them weights, {progress.memory(nbytes)}")
    assert said[3].startswith(f"go on with: holdfast run --run-dir {imported} ")
    assert job.events("step") == []
    assert [record["source"] for record in job.events("initial_weights")] == [str(weights.keras)]


def test_run_that_has_checkpoints_is_not_touched(
    imported: Path, weights: Weights, tmp_path: Path
) -> None:
    run_dir = shutil.copytree(imported, tmp_path / "run")
    before = (run_dir / "RUN.json").read_bytes()

    job = import_into(run_dir, weights.keras)

    assert_refused(job, 2, str(run_dir), "step 0", "--fresh")
    assert (run_dir / "RUN.json").read_bytes() == before


@pytest.fixture
def bad(weights: Weights, tmp_path: Path) -> dict[str, Path]:
    """One of each kind of file that cannot be imported."""
    cut, text = (tmp_path / f"{name}.weights.h5" for name in ("cut", "text"))
    cut.write_bytes(weights.keras.read_bytes()[:-5000])
    text.write_text("no weights")
    (tmp_path / "empty").mkdir()
    missing = tmp_path / "missing.weights.h5"
    empty = tmp_path / "empty"
    return {"cut": cut, "text": text, "other": weights.other, "missing": missing, "empty": empty}


WORDS = {
    "cut": ["cut.weights.h5 cannot be read", "truncated"],
    "text": ["text.weights.h5 cannot be read"],
    "other": ["another model's weights: 'weights/", "were not set"],
    "missing": ["missing.weights.h5 does not exist"],
    "empty": ["empty is no run: it has no RUN.json"],
}


@pytest.mark.parametrize("names", shortened([("other",), tuple(WORDS)], here=()))
def test_bad_weights_are_one_line_and_leave_no_run(
    bad: dict[str, Path], weights: Weights, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """What is wrong with a file alone is told in tests/runtime/training/test_initial_weights.py."""
    run_dir = tmp_path / "run"
    for name in names:
        job = import_into(run_dir, bad[name])

        assert_refused(job, 2, *WORDS[name])
        assert not (run_dir / "RUN.json").exists(), name
        assert job.stdout == ""

    job = import_into(run_dir, weights.keras)

    assert job.exit_code == 0, job.stderr
    assert sorted(path.name for path in run_dir.iterdir()) == [
        "RUN.json",
        "checkpoints",
        "journal.jsonl",
        "lease",
        "logs",
    ]


def test_import_that_is_told_to_stop_leaves_no_run_or_a_whole_one(
    weights: Weights, tmp_path: Path
) -> None:
    with start_import(weights.keras, tmp_path / "run") as running:
        running.wait_for("launch")
        running.signal(signal.SIGTERM)
        job = running.wait()

    has_run = (tmp_path / "run" / "RUN.json").exists()
    steps = CheckpointStore(tmp_path / "run").steps()
    assert (job.exit_code, has_run, steps) in [(75, False, ()), (0, True, (0,))], job.stderr
    assert job.leftovers == ()
