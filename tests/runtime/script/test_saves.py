"""Models that hooks and the script save are found again, on each worker."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras.src.saving import saving_api

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.overlay import Overlay, guarding
from holdfast.runtime.script.process import ScriptProcess
from holdfast.runtime.script.saves import FirstSaves, KeptLoads, install, share_caches

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

EXCHANGED = ("save_model", "save_weights", "load_model", "load_weights")


class Worker:
    """A worker's files, with its model's weights in one number."""

    def __init__(self, folder: Path, *, is_first: bool) -> None:
        self.scratch = folder / "private"
        self.scratch.mkdir()
        self.files = Overlay(is_first, lambda: self.scratch, lambda text: None)
        self.told: list[str] = []
        kept = KeptLoads(folder / "loaded", self.told.append)
        record = ScriptRecord(folder / "record")
        process = ScriptProcess(Path(__file__), record, folder / "run", lambda: self.scratch)
        self.saves = FirstSaves(process, kept)
        self.models = keras.models
        self.real_save = saving_api.save_weights
        self.model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        self.model.compile("sgd", "mse")
        self.set(0)

    def set(self, value: float) -> None:
        self.model.set_weights([np.array([[value]], np.float32)])

    @property
    def value(self) -> float:
        return float(self.model.get_weights()[0][0, 0])

    def hook(self, run: Any) -> None:
        """Run the code of a hook."""
        self.saves.hooks = self.files
        with guarding(self.files):
            run()
        self.saves.hooks = None

    def agree(self) -> None:
        self.files.agreed({})


@pytest.fixture(params=[True, False], ids=["first", "other"])
def worker(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Worker:
    for module in (saving_api, keras.saving, keras.models):
        for name in EXCHANGED:
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
    monkeypatch.setattr(keras.Model, "export", keras.Model.export)
    worker = Worker(tmp_path, is_first=request.param)
    install(worker.saves)
    return worker


def test_hook_loads_what_it_has_saved_a_moment_ago(worker: Worker, tmp_path: Path) -> None:
    weights, whole = str(tmp_path / "a.weights.h5"), tmp_path / "a.keras"

    def hook() -> None:
        worker.set(1)
        worker.model.save_weights(weights)
        worker.model.save(whole)
        worker.set(2)
        worker.model.load_weights(weights)
        assert worker.value == 1
        loaded = worker.models.load_model(whole)
        assert loaded.get_weights()[0][0, 0] == 1
        worker.set(3)
        worker.model.save_weights(weights)
        worker.set(4)
        worker.model.load_weights(weights)

    worker.hook(hook)

    assert worker.value == 3
    assert whole.exists() == worker.files.is_first


def test_later_hook_loads_what_the_first_worker_has_saved(worker: Worker, tmp_path: Path) -> None:
    path = str(tmp_path / "a.weights.h5")
    worker.set(1)
    worker.hook(lambda: worker.model.save_weights(path))
    worker.hook(lambda: worker.model.load_weights(path))
    if not worker.files.is_first:
        first = Worker(_folder(tmp_path), is_first=True)
        first.set(5)
        worker.real_save(first.model, path)
    worker.agree()

    worker.hook(lambda: worker.model.load_weights(path))

    assert worker.value == (1 if worker.files.is_first else 5)
    assert list(worker.scratch.iterdir()) == []


def test_hook_loads_what_the_script_has_saved_until_a_hook_saves_it(
    worker: Worker, tmp_path: Path
) -> None:
    path = str(tmp_path / "a.weights.h5")
    worker.set(1)
    worker.model.save_weights(path)

    def save() -> None:
        worker.set(3)
        worker.model.load_weights(path)
        assert worker.value == 1
        worker.set(2)
        worker.model.save_weights(path)
        worker.set(4)
        worker.model.load_weights(path)
        assert worker.value == 2

    worker.hook(save)
    worker.files.take_over()
    worker.agree()
    worker.set(5)
    worker.hook(lambda: worker.model.load_weights(path))

    assert worker.value == 2
    worker.model.load_weights(path)
    assert worker.value == 2


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "of another"
    folder.mkdir()
    return folder


def test_relaunched_script_loads_what_it_loaded_before_a_hook_saved_there(
    worker: Worker, tmp_path: Path
) -> None:
    """A hook of the next training writes the file that the script has loaded."""
    path = str(tmp_path / "best.weights.h5")
    worker.set(3)
    worker.real_save(worker.model, path)
    worker.model.load_weights(path)
    worker.set(5)
    worker.hook(lambda: worker.model.save_weights(path))
    if not worker.files.is_first:
        worker.files.take_over()

    again = KeptLoads(tmp_path / "loaded", worker.told.append)
    worker.saves._kept = again
    worker.model.load_weights(path)

    assert worker.value == 3
    assert len(worker.told) == 1


def test_each_worker_fills_a_cache_of_its_own_and_reads_one_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tf.data.Dataset.cache
    list(plain(tf.data.Dataset.range(4), f"{tmp_path}/whole").as_numpy_iterator())
    monkeypatch.setattr(tf.data.Dataset, "cache", plain)
    (tmp_path / "own").mkdir()
    share_caches(tf, lambda: tmp_path / "own")

    def read(place: Any, size: int) -> list[int]:
        return list(tf.data.Dataset.range(size).cache(place).as_numpy_iterator())

    assert read(tmp_path / "new", 2) == read("", 2) == [0, 1]
    assert read(str(tmp_path / "whole"), 2) == [0, 1, 2, 3]
    assert not list(tmp_path.glob("new*"))
    assert (tmp_path / "own" / "cache-1.index").exists()
