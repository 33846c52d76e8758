"""A shard in memory: the bytes of the file, and proof that they stayed so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem

from holdfast.checkpoint.errors import SnapshotDamaged, StateUnsupported
from holdfast.checkpoint.image import ShardImage
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import shard_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensor, specs_of

HEADER = Header("run", 7, 30)


@pytest.mark.parametrize("writers", [1, 3])
def test_image_is_the_file_that_is_written_of_the_state(
    tmp_path: Path, writers: int, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    state = state_of(1)
    layout = ShardLayout(specs_of(state), writers)
    staging = CheckpointStore(tmp_path).staging(HEADER.step, HEADER.generation, 1)

    for writer in range(writers):
        image = ShardImage(layout, writer, HEADER.run_id)
        buffer = bytearray(b"\xff" * (image.size + 100))
        record = image.fill(memoryview(buffer), state, HEADER)

        assert staging.write_shard(state, layout, writer, HEADER) == record
        path = staging.path / shard_name(writer, writers)
        assert path.read_bytes() == buffer[: image.size]
        assert buffer[image.size :] == b"\xff" * 100


def test_second_save_in_the_same_buffer_is_whole(
    state_of: Callable[[int], dict[str, Tensor]],
) -> None:
    first = state_of(1)
    second = {name: np.flip(tensor).copy() for name, tensor in first.items()}
    image = ShardImage(ShardLayout(specs_of(first), 1), 0, "run")
    used, fresh = bytearray(image.size), bytearray(image.size)

    image.fill(memoryview(used), first, HEADER)
    image.fill(memoryview(used), second, Header("run", 8, 31))
    image.fill(memoryview(fresh), second, Header("run", 8, 31))

    assert used == fresh


def test_snapshots_of_all_writers_make_a_checkpoint(
    store: CheckpointStore, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    """Nothing of the state is needed any more, nor HDF5: only images and records."""
    state = state_of(3)
    layout = ShardLayout(specs_of(state), 4)
    staging = store.staging(HEADER.step, HEADER.generation, 1)
    records = []
    for writer in range(4):
        image = ShardImage(layout, writer, HEADER.run_id)
        buffer = memoryview(bytearray(image.size))
        records.append(image.fill(buffer, state, HEADER))
        staging.write_image(buffer, records[-1], 4)

    staging.commit(Manifest.assemble(layout, records, header=HEADER, cursor={}, numerics={}))

    restored = restore(store, HEADER.step).state
    assert restored.keys() == state.keys()
    for name, tensor in state.items():
        assert restored[name].tobytes() == tensor.tobytes(), name
        assert (restored[name].dtype, restored[name].shape) == (tensor.dtype, tensor.shape)


def test_every_flipped_byte_of_an_image_is_found(store: CheckpointStore) -> None:
    state: dict[str, Tensor] = {"a": np.arange(40.0), "b": np.arange(3, dtype=np.int8)}
    layout = ShardLayout(specs_of(state), 1)
    image = ShardImage(layout, 0, "run")
    buffer = bytearray(image.size)
    record = image.fill(memoryview(buffer), state, HEADER)
    record.check(memoryview(buffer))
    staging = store.staging(HEADER.step, HEADER.generation, 1)

    for place in range(0, image.size):
        buffer[place] ^= 4
        with pytest.raises(SnapshotDamaged, match="changed"):
            record.check(memoryview(buffer))
        buffer[place] ^= 4
    buffer[-1] ^= 1
    with pytest.raises(SnapshotDamaged):
        staging.write_image(memoryview(buffer), record, 1)

    assert list(staging.path.iterdir()) == []


def test_damaged_piece_is_not_written_and_leaves_no_shard() -> None:
    state: dict[str, Tensor] = {name: np.arange(5000.0) for name in "abc"}
    image = ShardImage(ShardLayout(specs_of(state), 1), 0, "run")
    buffer = bytearray(image.size)
    record = image.fill(memoryview(buffer), state, HEADER)
    buffer[record.pieces[1].offset + 17] ^= 1
    files = FakeFileSystem()
    staging = CheckpointStore(Path("/run/job"), files).staging(HEADER.step, HEADER.generation, 1)

    with pytest.raises(SnapshotDamaged, match="tensor 'b' have changed"):
        staging.write_image(memoryview(buffer), record, 1)

    assert files.list(staging.path) == ()
    assert not any(call.startswith("fsync ") for call in files.calls)


def test_image_of_another_length_is_refused() -> None:
    state: dict[str, Tensor] = {"a": np.arange(40.0)}
    image = ShardImage(ShardLayout(specs_of(state), 1), 0, "run")
    buffer = memoryview(bytearray(image.size + 1))
    record = image.fill(buffer, state, HEADER)

    for length in (image.size - 1, image.size + 1):
        with pytest.raises(SnapshotDamaged):
            record.check(buffer[:length])


def test_state_of_another_layout_is_refused() -> None:
    image = ShardImage(ShardLayout(specs_of({"a": np.zeros(3)}), 1), 0, "run")

    with pytest.raises(StateUnsupported, match="does not fit the layout"):
        image.fill(memoryview(bytearray(image.size)), {"a": np.zeros(4)}, HEADER)
