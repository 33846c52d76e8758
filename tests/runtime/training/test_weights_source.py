"""What a path of weights is, by its name and by what lies there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.runtime.errors import UsageError
from holdfast.runtime.training.weights_source import WeightsKind, WeightsSource, is_weight


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One good source of each kind."""
    save(CheckpointStore(tmp_path / "run"), {"weights/a": np.zeros(2)}, header=Header("r", 1, 3))
    (tmp_path / "tf").mkdir()
    (tmp_path / "tf" / "checkpoint").touch()
    for name in ("w.npz", "w.weights.h5", "w.keras", "tf/ckpt-1.index"):
        (tmp_path / name).touch()
    (tmp_path / "empty").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("w.npz", WeightsKind.ARCHIVE),
        ("w.weights.h5", WeightsKind.KERAS),
        ("w.keras", WeightsKind.KERAS),
        ("tf/ckpt-1", WeightsKind.TENSORFLOW),
        ("tf", WeightsKind.TENSORFLOW),
        ("run", WeightsKind.RUN),
    ],
)
def test_kind_is_told_by_name_and_place(name: str, kind: WeightsKind, folder: Path) -> None:
    source = WeightsSource(folder / name)

    source.check()

    assert source.kind is kind


@pytest.mark.parametrize(
    ("name", "step", "complaint"),
    [
        ("x.npz", None, "x.npz does not exist; begin with"),
        ("x.weights.h5", None, "x.weights.h5 does not exist"),
        ("model.h5", None, "model.h5.index does not exist"),
        ("tf/ckpt-2", None, "ckpt-2.index does not exist"),
        ("empty", None, "empty is no run: it has no RUN.json"),
        ("run", 4, "run has no step 4; it has 3"),
        ("w.npz", 3, "w.npz is an .npz file and has no step 3; only another run's directory"),
        ("tf", 1, "tf is a TensorFlow checkpoint and has no step 1"),
    ],
)
def test_what_is_not_there_is_refused_before_it_is_read(
    name: str, step: int | None, complaint: str, folder: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        WeightsSource(folder / name, step).check()


def test_step_of_another_run_is_found(folder: Path) -> None:
    WeightsSource(folder / "run", 3).check()


@pytest.mark.parametrize("name", ["weights/a", "velocity", "optimizer_of_mine"])
def test_weights_are_what_neither_optimizer_nor_cursor_has(name: str) -> None:
    assert is_weight(name)
    assert not is_weight("optimizer/rate")
    assert not is_weight("cursor/step")
