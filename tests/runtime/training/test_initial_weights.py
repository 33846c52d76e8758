"""A new run begins with all weights of a source, or says which ones it has not found there."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import RunUnreadable, UsageError
from holdfast.runtime.training.initial_weights import load_initial_weights


class Replica:
    """As much of a replica as has a state."""

    def __init__(self) -> None:
        self._state: dict[str, Any] = {
            "optimizer/rate": np.array(0.25, np.float32),
            "weights/a": np.zeros(2, np.float32),
            "weights/b": np.zeros((2, 3), np.float32),
            "weights/count": np.zeros(1, np.int64),
        }

    def state(self) -> dict[str, Any]:
        return self._state

    def load(self, state: dict[str, Any]) -> None:
        self._state = {name: np.array(value) for name, value in state.items()}


class KerasLike(Replica):
    """A replica whose model reads JSON files of any name."""

    def __init__(self) -> None:
        super().__init__()
        self.model = SimpleNamespace(load_weights=self._load_weights)

    def _load_weights(self, path: Path) -> None:
        for name, value in json.loads(path.read_text()).items():
            if value == "wrong":
                raise ValueError("a shape\nis wrong")
            if value == "cut":
                raise OSError("truncated file")
            self._state[name] = np.full_like(self._state[name], value)


def weights(**changes: Any) -> dict[str, Any]:
    found = {
        "cursor/step": np.array(9),
        "optimizer/rate": np.array(7.0, np.float32),
        "weights/a": np.ones(2, np.float32),
        "weights/b": np.ones((2, 3), np.float32),
        "weights/count": np.ones(1, np.int64),
    }
    return found | changes


def archive(folder: Path) -> Path:
    np.savez(folder / "w.npz", **weights())
    return folder / "w.npz"


def another_run(folder: Path) -> Path:
    store = CheckpointStore(folder)
    save(store, weights(**{"weights/a": np.zeros(2, np.float32)}), header=Header("r", 1, 1))
    save(store, weights(), header=Header("r", 1, 2))
    return folder


def own_file(folder: Path) -> Path:
    everything = {"weights/a": 1, "weights/b": 1, "weights/count": 1, "optimizer/rate": 7}
    (folder / "x.weights.h5").write_text(json.dumps(everything))
    return folder / "x.weights.h5"


@pytest.mark.parametrize("make", [archive, another_run, own_file])
def test_source_gives_the_weights_and_leaves_the_optimizer(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    replica = KerasLike()

    load_initial_weights(replica, make(tmp_path))

    state = replica.state()
    assert state["weights/a"].tolist() == [1, 1]
    assert state["weights/b"].tolist() == [[1, 1, 1]] * 2
    assert state["optimizer/rate"] == 0.25
    assert "cursor/step" not in state


def test_newest_step_that_cannot_be_read_just_now_gives_way_to_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    for saved in (1, 2):
        save(store, weights(), header=Header("r", 1, saved))
    plain = FileSystem.open_read

    def open_read(files: FileSystem, path: Path) -> int:
        if path.parent.name == "step-000000000002":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return plain(files, path)

    monkeypatch.setattr(FileSystem, "open_read", open_read)

    with pytest.raises(RunUnreadable, match=r"step 2 could not be read: .*ESTALE") as refused:
        load_initial_weights(Replica(), tmp_path)
    assert refused.value.exit_code == os.EX_TEMPFAIL
    assert "is not known to be damaged" in str(refused.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"weights/a": 1}, ["'weights/b' were not set", "does not hold them"]),
        ({"weights/b": 1, "weights/a": "wrong"}, ["'weights/a' were not set", "shape is wrong"]),
        ({"weights/a": 1, "weights/b": 1, "x": "wrong"}, ["cannot be read", "a shape is wrong"]),
        ({"weights/a": 1, "weights/b": "cut"}, ["cannot be read", "truncated file"]),
    ],
)
def test_weights_that_the_model_did_not_set_are_named(
    content: dict[str, object], words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "x.weights.h5").write_text(json.dumps(content))

    with pytest.raises(UsageError) as caught:
        load_initial_weights(KerasLike(), tmp_path / "x.weights.h5")

    assert [word for word in words if word not in str(caught.value)] == []


def test_tensors_of_another_model_are_named(tmp_path: Path) -> None:
    replica = Replica()
    np.savez(tmp_path / "w.npz", **weights(**{"weights/b": np.ones(5), "weights/c": np.ones(1)}))

    with pytest.raises(UsageError, match=r"extra 'weights/c'.*'weights/b' float32\[2, 3\] is"):
        load_initial_weights(replica, tmp_path / "w.npz")

    assert replica.state()["weights/a"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("nowhere.npz", "No such file"),
        ("nowhere.weights.h5", "does not exist"),
        ("nowhere", r"nowhere.index does not exist"),
        ("empty", "no valid checkpoint"),
        ("text.npz", "cannot be read"),
        ("cut.npz", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_one_sentence(name: str, complaint: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.npz").write_text("no archive")
    np.savez(tmp_path / "whole.npz", **weights())
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:300])

    with pytest.raises(UsageError, match=complaint):
        load_initial_weights(Replica(), tmp_path / name)


def test_keras_file_needs_a_keras_model(tmp_path: Path) -> None:
    (tmp_path / "x.weights.h5").write_text("{}")

    with pytest.raises(UsageError, match="can only begin a Keras model"):
        load_initial_weights(Replica(), tmp_path / "x.weights.h5")
