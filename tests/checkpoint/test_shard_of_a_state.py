"""A shard of a state in memory: its record has the digests of that memory; none is copied."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.digest import digest_of
from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.names import shard_name
from holdfast.checkpoint.record import Header, ShardRecord
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensor, Tensors, specs_of

HEADER = Header("run", 1, 30)
STATE: dict[str, Tensor] = {
    "a": np.arange(9000, dtype=np.float32).reshape(90, 100),
    "b": np.arange(7, dtype=np.int64),
    "empty": np.zeros((0, 2)),
}


def write(
    directory: Path, state: Tensors, layout: ShardLayout, writer: int = 0
) -> tuple[ShardRecord, Path]:
    """Return the record of a shard, and its file."""
    staging = CheckpointStore(directory).staging(HEADER.step, HEADER.generation, 1)
    record = staging.write_shard(state, layout, writer, HEADER)
    return record, staging.path / shard_name(writer, layout.writers)


def test_record_describes_the_file(tmp_path: Path) -> None:
    layout = ShardLayout(specs_of(STATE), 2)

    record, path = write(tmp_path, STATE, layout)

    data = path.read_bytes()
    assert record.index == 0
    assert record.size == len(data)
    outside = bytearray(data)
    for piece in sorted(record.pieces, key=lambda piece: -piece.offset):
        assert piece.digest == digest_of(data[piece.offset : piece.offset + piece.bytes])
        del outside[piece.offset : piece.offset + piece.bytes]
    assert record.digest == digest_of(outside)


def test_piece_digests_are_those_of_the_arrays(tmp_path: Path) -> None:
    layout = ShardLayout(specs_of(STATE), 1)

    record, _ = write(tmp_path, STATE, layout)

    found = {piece.tensor: piece.digest for piece in record.pieces}
    assert found == {name: digest_of(STATE[name].tobytes()) for name in ("a", "b")}


def test_state_is_not_copied(tmp_path: Path) -> None:
    state: dict[str, Tensor] = {f"t{i}": np.ones(500_000, np.float32) for i in range(10)}
    layout = ShardLayout(specs_of(state), 1)
    tracemalloc.start()

    try:
        write(tmp_path, state, layout)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 1_000_000 < layout.nbytes


def test_awkward_memory_is_copied_for_the_rows_in_question_only(tmp_path: Path) -> None:
    state: dict[str, Tensor] = {"t": np.ones((1000, 2000), np.float64)[:, ::2]}
    layout = ShardLayout(specs_of(state), 8)
    tracemalloc.start()

    try:
        write(tmp_path, state, layout, 3)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < layout.nbytes / 4


@pytest.mark.parametrize(
    "state",
    [
        {},
        STATE | {"more": np.zeros(1)},
        STATE | {"b": np.zeros(8, np.int64)},
        STATE | {"b": np.zeros(7)},
    ],
)
def test_state_of_another_layout_is_refused(tmp_path: Path, state: dict[str, Tensor]) -> None:
    layout = ShardLayout(specs_of(STATE), 1)

    with pytest.raises(StateUnsupported, match="make a layout of its specs"):
        write(tmp_path, state, layout)

    assert list(tmp_path.iterdir()) == []
