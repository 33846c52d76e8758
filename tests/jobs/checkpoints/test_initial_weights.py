"""A run that begins with another one's weights: exported, and from its directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from workload import assert_refused

from holdfast.checkpoint.comparison import Opened, compare_steps
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.cli.main import holdfast
from holdfast.runtime.run.journal import read_journal
from holdfast.testing import JobRun, run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "everything_keras.py"


def train(run_dir: Path, workers: int, *argv: str) -> JobRun:
    return run_job(
        SCRIPT,
        run_dir=run_dir,
        workers=workers,
        microbatches=2,
        argv=argv,
        options=("--threads", "1", "--heartbeat-timeout", "20"),
        timeout_s=300,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its export, and a run that began with that."""
    folder = tmp_path_factory.mktemp("runs")
    exported = folder / "w.npz"
    assert train(folder / "first", 1, "--epochs", "1").exit_code == 0
    result = CliRunner().invoke(holdfast, ["export", str(folder / "first"), "--to", str(exported)])
    assert result.exit_code == 0, result.output
    job = train(folder / "one", 1, "--epochs", "1", "--initial", str(exported))
    assert job.exit_code == 0, job.stderr
    return folder


def beginnings(run_dir: Path) -> list[object]:
    records = read_journal(run_dir / "journal.jsonl")
    return [record["sha256"] for record in records if record["event"] == "initial_weights"]


def differences(left: Path, right: Path) -> set[str]:
    scans = [CheckpointStore(path).scan(5) for path in (left, right)]
    found = compare_steps(*(Opened(scan, scan.manifest()) for scan in scans))
    return {difference.name for difference in found.differences}


@pytest.mark.extended
def test_exported_weights_and_the_run_itself_begin_the_same_run(folder: Path) -> None:
    """A Keras file begins a run in test_import_keras.py, an archive in test_import.py."""
    job = train(folder / "two", 2, "--epochs", "1", "--initial", str(folder / "first"))

    assert job.exit_code == 0, job.stderr
    assert differences(folder / "one", folder / "two") == set()
    assert "weights/sequential/dense/kernel" in differences(folder / "first", folder / "one")
    assert len(beginnings(folder / "one")) == 1
    assert beginnings(folder / "one") == beginnings(folder / "two")


@pytest.mark.extended
def test_run_that_resumes_does_not_look_at_it(folder: Path) -> None:
    """An imported run resumes in test_import_keras.py."""
    job = train(folder / "one", 1, "--epochs", "2", "--initial", "nowhere.npz")

    assert job.exit_code == 0, job.stderr
    assert len(beginnings(folder / "one")) == 1


@pytest.mark.extended
def test_weights_that_are_not_there_are_one_sentence(tmp_path: Path) -> None:
    """Bad weights are so in test_import_keras.py, and missing ones in test_initial_weights.py
    of tests/runtime/model."""
    job = train(tmp_path / "run", 2, "--initial", str(tmp_path / "nowhere.weights.h5"))

    assert_refused(job, 2, "nowhere.weights.h5 does not exist")
