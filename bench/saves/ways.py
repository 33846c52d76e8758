"""The ways to save a state that the checkpoint benchmark compares; peers only where installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from saves.committed_save import CopiedState, committer, plan_of, save_without_memory
from saves.state import State

RAW = "pwritev, fsync"
OURS, IMAGE, ONE_SHARD = "holdfast, state", "holdfast, image", "holdfast, one shard"
_HEADER = Header("bench", 1, 1)
_MOST_BUFFERS = 1024  # IOV_MAX of Linux


@dataclass(frozen=True, slots=True)
class Way:
    """How to write a state into an empty directory, and to get it back.

    ``syncs`` says that all is durable when ``write`` returns, ``verifies`` that
    ``restore`` compares checksums of the data.
    """

    name: str
    write: Callable[[Path], None]
    restore: Callable[[Path], State]
    syncs: bool = False
    verifies: bool = False


def find_ways(state: State, words: Sequence[str] | None = None) -> list[Way]:
    """Return holdfast, the raw way and the installed peers whose names have one of ``words``.

    No words stand for all peers.  Prints which peer is not installed.
    """
    ways = [_raw(state), _state_way(state), image_way(state), _one_shard(state)]
    for name, make in _PEERS.items():
        if words is not None and not any(word in name for word in words):
            continue
        try:
            ways.append(make(name, state))
        except ImportError as error:
            print(f"  {name}: skipped, not installed ({error})")
    return ways


def sync_tree(directory: Path) -> None:
    """Make every file and every name in ``directory`` durable."""
    for folder, _, names in os.walk(directory):
        for path in (*(Path(folder) / name for name in names), Path(folder)):
            handle = os.open(path, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)


def _raw(state: State) -> Way:
    """One file, one system call for up to 1024 tensors; read by one call a tensor."""

    def write(directory: Path) -> None:
        handle = os.open(directory / "raw", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        _write_all(handle, [tensor.reshape(-1).view(np.uint8).data for tensor in state.values()])
        os.fsync(handle)
        os.close(handle)

    def read(directory: Path) -> State:
        handle = os.open(directory / "raw", os.O_RDONLY)
        found, offset = _empty(state), 0
        for tensor in found.values():
            _read_all(handle, tensor.reshape(-1).view(np.uint8).data, offset)
            offset += tensor.nbytes
        os.close(handle)
        return found

    return Way(RAW, write, read, syncs=True)


def _write_all(handle: int, buffers: list[memoryview]) -> None:
    offset = 0
    while buffers:
        taken = os.pwritev(handle, buffers[:_MOST_BUFFERS], offset)
        offset += taken
        while buffers and taken >= len(buffers[0]):
            taken -= len(buffers.pop(0))
        if taken:
            buffers[0] = buffers[0][taken:]


def _read_all(handle: int, buffer: memoryview, offset: int) -> None:
    while len(buffer):
        count = os.preadv(handle, [buffer], offset)
        buffer, offset = buffer[count:], offset + count


def _empty(state: State) -> State:
    return {name: np.empty_like(tensor) for name, tensor in state.items()}


def _state_way(state: State) -> Way:
    """What a host without memory for a copy does, while the training loop waits."""

    def write(directory: Path) -> None:
        plan = plan_of(directory, state)
        mine = committer(plan)
        save_without_memory(state, mine, _HEADER.step)
        mine.close(0.0)

    return Way(OURS, write, _restore, syncs=True, verifies=True)


def _one_shard(state: State) -> Way:
    """A whole save by one thread into one file, as a program without a job makes it."""

    def write(directory: Path) -> None:
        save(CheckpointStore(directory), state, header=_HEADER)

    return Way(ONE_SHARD, write, _restore, syncs=True, verifies=True)


def image_way(state: State) -> Way:
    """What the host's writer does in the background, with a state that was copied before."""
    copied = CopiedState(state)
    copied.copy(_HEADER.step)

    def write(directory: Path) -> None:
        mine = committer(plan_of(directory, state))
        copied.commit(mine)
        mine.close(0.0)

    return Way(IMAGE, write, _restore, syncs=True, verifies=True)


def _restore(directory: Path) -> State:
    return restore(CheckpointStore(directory), _HEADER.step).state


def _safetensors(title: str, state: State) -> Way:
    from safetensors.numpy import load_file, save_file

    return Way(
        title,
        lambda directory: save_file(state, directory / "model.safetensors"),
        lambda directory: load_file(directory / "model.safetensors"),
    )


def _h5py(title: str, state: State) -> Way:
    return Way(title, lambda directory: _write_hdf5(directory, state), _read_hdf5)


def _fletcher32(title: str, state: State) -> Way:
    def write(directory: Path) -> None:
        _write_hdf5(directory, state, fletcher32=True)

    return Way(title, write, _read_hdf5, verifies=True)


def _write_hdf5(directory: Path, state: State, **options: Any) -> None:
    with h5py.File(directory / "state.h5", "w") as file:
        for name, tensor in state.items():
            file.create_dataset(name, data=tensor, **options)


def _read_hdf5(directory: Path) -> State:
    with h5py.File(directory / "state.h5", "r") as file:
        return {name: file[name][()] for name in _dataset_names(file)}


def _dataset_names(file: h5py.File) -> list[str]:
    names: list[str] = []
    file.visititems(lambda name, item: names.append(name) if hasattr(item, "dtype") else None)
    return names


def _tensorflow(title: str, state: State) -> Way:
    """Variables are restored in place, which is TensorFlow's way."""
    import tensorflow as tf

    variables = {name: tf.Variable(tensor) for name, tensor in state.items()}
    checkpoint = tf.train.Checkpoint(variables=variables)

    def read(directory: Path) -> State:
        checkpoint.read(str(directory / "tf")).assert_consumed()
        return _Variables(variables)

    return Way(
        title,
        lambda directory: checkpoint.write(str(directory / "tf")),
        read,
        verifies=True,
    )


class _Variables(dict[str, Any]):
    """Variables that become arrays when they are looked at."""

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name).numpy()


def _keras(title: str, state: State) -> Way:
    import keras

    class Holder(keras.layers.Layer):  # type: ignore[misc]
        def call(self, inputs: Any) -> Any:
            return inputs

    layer = Holder()
    weights = {
        name: layer.add_weight(shape=tensor.shape, name=name.replace("/", "_"))
        for name, tensor in state.items()
    }
    for name, weight in weights.items():
        weight.assign(state[name])
    model = keras.Sequential([keras.Input((1,)), layer])

    def read(directory: Path) -> State:
        model.load_weights(directory / "state.weights.h5")
        return _Variables(weights)

    return Way(
        title,
        lambda directory: model.save_weights(directory / "state.weights.h5"),
        read,
    )


def _orbax(title: str, state: State) -> Way:
    """It syncs some of its files itself, and the rest is synced here."""
    import orbax.checkpoint as orbax

    checkpointer = orbax.Checkpointer(orbax.PyTreeCheckpointHandler())
    return Way(
        title,
        lambda directory: checkpointer.save(directory.absolute() / "orbax", state),
        lambda directory: checkpointer.restore(directory.absolute() / "orbax"),
    )


_PEERS: dict[str, Callable[[str, State], Way]] = {
    "safetensors": _safetensors,
    "h5py": _h5py,
    "h5py, fletcher32": _fletcher32,
    "tf.train.Checkpoint": _tensorflow,
    "Keras .weights.h5": _keras,
    "Orbax": _orbax,
}
