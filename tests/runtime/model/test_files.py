"""Weights go out to Keras's files and come in from them, without a bit changed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras_harness
import numpy as np
import pytest
from extended import extended
from keras_harness import IMAGES, build, convolutional, copy_of, dense
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import Restored, restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.commands.export import (
    ModelSource,
    export_state,
)
from holdfast.runtime.errors import UsageError
from holdfast.runtime.training.initial_weights import load_initial_weights

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras's
]

SCRIPT = """
import sys
from types import SimpleNamespace
sys.path.insert(0, {folder!r})
import keras
from keras_harness import convolutional, dense

def model():
    return convolutional(SimpleNamespace(keras=keras))

def other():
    return dense(SimpleNamespace(keras=keras))

if __name__ == "__main__":
    from keras_harness import IMAGES, LABELS
    from holdfast import ArrayData, Trainer
    Trainer(model, ArrayData(IMAGES, LABELS), global_batch=9, epochs=1).run()
"""


@pytest.fixture
def trained(replicas: list[Any]) -> dict[str, np.ndarray]:
    """A state in which no two values are alike."""
    random = np.random.default_rng(7)
    state = copy_of(replicas[0].state())
    for name, value in state.items():
        if value.dtype == np.float32:
            state[name] = random.uniform(0.1, 1, value.shape).astype(np.float32)
    return state


@pytest.fixture
def restored(trained: dict[str, np.ndarray], tmp_path: Path) -> Restored:
    store = CheckpointStore(tmp_path / "run")
    save(store, trained | {"cursor/step": np.array(3)}, header=Header("r", 1, 3), writers=2)
    return restore(store, 3)


@pytest.fixture
def source(tf: SimpleNamespace, tmp_path: Path) -> ModelSource:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT.format(folder=str(Path(keras_harness.__file__).parent)))
    tf.keras.backend.clear_session()
    return ModelSource(path, "model", IMAGES.shape[1:])


@pytest.mark.parametrize("kind", [".weights.h5", extended(".keras")])
def test_exported_weights_begin_another_run(
    kind: str,
    tf: SimpleNamespace,
    restored: Restored,
    source: ModelSource,
    tmp_path: Path,
) -> None:
    target = tmp_path / f"w{kind}"
    export_state(restored, target, source)
    replica = build(tf, convolutional)
    before = copy_of(replica.state())

    load_initial_weights(replica, target)

    for name, value in replica.state().items():
        wanted = restored.state if name.startswith("weights/") else before
        assert value.tobytes() == wanted[name].tobytes(), name


def test_script_alone_is_run_up_to_its_trainer(
    tf: SimpleNamespace, restored: Restored, source: ModelSource, tmp_path: Path
) -> None:
    """Neither function nor shape: the model is the trainer's, built on a sample of its data."""
    paths = [tmp_path / "a.weights.h5", tmp_path / "b.weights.h5"]
    for path, model in zip(paths, (source, ModelSource(source.script)), strict=True):
        tf.keras.backend.clear_session()
        export_state(restored, path, model)

    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_archive_of_keras_has_the_optimizer_too(
    tf: SimpleNamespace, restored: Restored, source: ModelSource, tmp_path: Path
) -> None:
    target = tmp_path / "w.keras"
    export_state(restored, target, source)

    optimizer = tf.keras.models.load_model(target).optimizer

    wanted = [value for name, value in restored.state.items() if name.startswith("optimizer/")]
    found = [np.asarray(variable.value) for variable in optimizer.variables]
    assert sorted(v.tobytes() for v in found) == sorted(v.tobytes() for v in wanted)


def test_another_model_is_refused_by_the_names_of_its_tensors(
    restored: Restored, source: ModelSource, tmp_path: Path
) -> None:
    other = ModelSource(source.script, "other", source.input_shape)

    with pytest.raises(UsageError, match=r"is of another model: missing 'optimizer/.*and \d+ more"):
        export_state(restored, tmp_path / "w.keras", other)


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize("is_directory", [True, False])
def test_tensorflow_checkpoint_begins_a_run(
    *,
    is_named: bool,
    is_directory: bool,
    tf: SimpleNamespace,
    replicas: list[Any],
    trained: dict[str, np.ndarray],
    tmp_path: Path,
) -> None:
    saved, fresh = replicas[:2]
    saved.load(trained)
    before = copy_of(fresh.state())
    checkpoint = tf.tensorflow.train.Checkpoint
    made = checkpoint(model=saved.model) if is_named else checkpoint(saved.model)
    prefix = Path(made.save(str(tmp_path / "saved" / "ckpt")))

    load_initial_weights(fresh, prefix.parent if is_directory else prefix)

    for name, value in fresh.state().items():
        wanted = trained if name.startswith("weights/") else before
        assert value.tobytes() == wanted[name].tobytes(), name


@pytest.mark.parametrize("suffix", [".weights.h5", ""])
def test_file_of_another_model_is_refused_by_the_names_of_tensors(
    suffix: str, tf: SimpleNamespace, replicas: list[Any], tmp_path: Path
) -> None:
    model = build(tf, dense).model
    if suffix:
        model.save_weights(tmp_path / f"w{suffix}")
    else:
        tf.tensorflow.train.Checkpoint(model=model).write(str(tmp_path / "w"))

    with pytest.raises(UsageError, match=r"another model's weights: 'weights/.* were not set"):
        load_initial_weights(replicas[0], tmp_path / f"w{suffix}")


def test_damaged_file_is_refused(replicas: list[Any], tmp_path: Path) -> None:
    (tmp_path / "w.weights.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(500))

    with pytest.raises(UsageError, match=r"were not set|cannot be read"):
        load_initial_weights(replicas[0], tmp_path / "w.weights.h5")


@pytest.mark.parametrize("name", ["w.weights.h5", "w.keras", "w.index", "w.data-00000-of-00001"])
def test_file_that_is_cut_short_cannot_be_read(
    name: str, tf: SimpleNamespace, replicas: list[Any], tmp_path: Path
) -> None:
    """It is not called another model's, which it may not be."""
    model, path = replicas[1].model, tmp_path / name
    if name.endswith(".h5"):
        model.save_weights(path)
    elif name.endswith(".keras"):
        model.save(path)
    else:
        tf.tensorflow.train.Checkpoint(model=model).write(str(tmp_path / "w"))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    source = path if name.endswith((".h5", ".keras")) else tmp_path / "w"

    with pytest.raises(UsageError, match="cannot be read"):
        load_initial_weights(replicas[0], source)


def test_directory_whose_newest_tensorflow_checkpoint_is_gone(
    tf: SimpleNamespace, replicas: list[Any], tmp_path: Path
) -> None:
    prefix = tf.tensorflow.train.Checkpoint(model=replicas[1].model).save(str(tmp_path / "ckpt"))
    Path(f"{prefix}.index").unlink()

    with pytest.raises(UsageError, match=r"cannot be read: .* is not there"):
        load_initial_weights(replicas[0], tmp_path)
