"""Callbacks go on as if nothing had happened: their memory, decisions, files and events."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import pytest

from holdfast.testing import JobRun, run_job

pytestmark = [pytest.mark.mpi, pytest.mark.tensorflow]

SCRIPT = Path(__file__).parents[1] / "scripts" / "many_callbacks.py"


def train(folder: Path, workers: int, *faults: str) -> JobRun:
    out = folder / "out"
    out.mkdir(exist_ok=True, parents=True)
    job = run_job(
        SCRIPT,
        run_dir=folder / "run",
        workers=workers,
        microbatches=2,
        faults=faults,
        argv=(str(out),),
        options=("--threads", "1", "--save-every", "3"),
        timeout_s=300,
    )
    assert job.exit_code == 0, job.stderr
    assert job.leftovers == ()
    assert list((folder / "run").glob(".private*")) == []
    return job


def files_of(folder: Path) -> dict[str, Any]:
    """Return what each file holds, but for the times in saved models and in events."""
    found: dict[str, Any] = {}
    for path in sorted((folder / "out").rglob("*")):
        name = str(path.relative_to(folder / "out"))
        if path.suffix == ".keras":
            with zipfile.ZipFile(path) as parts:
                found[name] = _weights(BytesIO(parts.read("model.weights.h5")))
        elif path.suffix == ".h5":
            found[name] = _weights(path)
        elif path.is_file() and "tfevents" not in name:
            found[name] = path.read_bytes()
    return found | {"events": _events(folder / "out" / "events")}


def _weights(source: Any) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    with h5py.File(source) as file:
        file.visititems(
            lambda name, node: (
                found.__setitem__(name, node[()].tobytes())
                if isinstance(node, h5py.Dataset)
                else None
            )
        )
    return found


def _events(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return tag, step and value of all summaries, in their order; own figures have no value."""
    if not folder.exists():  # TensorBoard is not installed
        return {}
    found: dict[str, list[tuple[Any, ...]]] = {}
    for path, step, value in _summaries(folder):
        is_alike = value.tag != "keras" and path.parent.name != "holdfast"
        text = value.tensor.SerializeToString() if is_alike else b""
        found.setdefault(path.parent.name, []).append((value.tag, step, text))
    return found


def _summaries(folder: Path) -> Iterator[tuple[Path, int, Any]]:
    """Yield the file, the step and the value of all summaries, in their order."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    for path in sorted(folder.rglob("*tfevents*")):
        for event in loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                yield path, event.step, value


def scalars(folder: Path, run: str) -> dict[str, list[tuple[int, float]]]:
    """Return the steps and values of each tag of a run that TensorBoard shows, in their order."""
    numbers = pytest.importorskip("tensorboard.util.tensor_util")
    found: dict[str, list[tuple[int, float]]] = {}
    for _, step, value in _summaries(folder / "out" / "events" / run):
        if value.tag != "keras":
            number = float(numbers.make_ndarray(value.tensor))
            found.setdefault(value.tag, []).append((step, number))
    return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[JobRun, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    job = train(folder, 1)
    return job, files_of(folder)


@pytest.mark.extended  # the test beside it has the deaths
def test_undisturbed_run_stops_early_and_writes_each_file_once(
    undisturbed: tuple[JobRun, dict[str, Any]],
) -> None:
    job, files = undisturbed
    result = json.loads(files["result.json"])
    epochs = len(result["epochs"])

    assert 2 < epochs < 12
    assert result["stopped"][0] == epochs - 1
    assert len(result["losses"]) == epochs * 6
    assert result["best"] == result["weights"]
    assert len(files["log.csv"].splitlines()) == 1 + epochs
    assert len(files["diary.txt"].splitlines()) == 2 + epochs
    assert "BackupAndRestore does nothing here" in job.stderr


def test_first_worker_dies_then_all_and_then_the_first_of_the_relaunch(
    undisturbed: tuple[JobRun, dict[str, Any]], tmp_path: Path
) -> None:
    """Steps 8, 15 and 18 are in the middle, in the middle and at the end of an epoch of 6."""
    all_others = ("kill worker=1 step=15", "kill worker=2 step=15")
    job = train(
        tmp_path, 3, "kill worker=0 step=8", *all_others, "kill worker=3 step=18 site=apply"
    )
    written = files_of(tmp_path)
    again = train(tmp_path, 2)

    before, files = undisturbed
    assert len(job.report.relaunches) == 1
    assert job.sha256 == again.sha256 == before.sha256
    assert written == files
    assert files_of(tmp_path) == files
    epochs = json.loads(files["result.json"])["epochs"]
    check_tensorboard(tmp_path, epochs)


def check_tensorboard(folder: Path, epochs: list[int]) -> None:
    """Each scalar of an epoch stands once, in order."""
    pytest.importorskip("tensorboard")
    shown = {run: scalars(folder, run) for run in ("train", "validation")}
    for tags in shown.values():
        for tag, points in tags.items():
            if tag.startswith("epoch_"):
                assert [step for step, _ in points] == epochs, tag
    assert {"epoch_loss", "epoch_accuracy", "epoch_learning_rate"} <= shown["train"].keys()
    assert {"epoch_loss", "epoch_accuracy"} <= shown["validation"].keys()
