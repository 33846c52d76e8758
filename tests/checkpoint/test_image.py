"""Shards in memory: filled in shares, written, and read like a directory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import SnapshotDamaged, StateUnsupported
from holdfast.checkpoint.image import ShardImage, ShareImage, lay_out_shard
from holdfast.checkpoint.image_map import ImageMap, share_of
from holdfast.checkpoint.manifest import Header, ShardRecord
from holdfast.checkpoint.names import shard_name
from holdfast.checkpoint.shares import HEADER_BYTES, digests_of, held_by, note_part, written_by
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensor, TensorSpec, specs_of

HEADER = Header("run", 7, 30)

SHARED = Header("run", 3, 40)

SHAPES = st.lists(st.integers(0, 40), max_size=4).map(tuple)
NAMES = st.text("ab/é", min_size=1, max_size=24)
STATES = st.dictionaries(NAMES, st.tuples(SHAPES, st.sampled_from(["float32", "int64", "bool"])))


def filled(
    image: ShardImage, buffer: memoryview, state: dict[str, Tensor], header: Header
) -> ShardRecord:
    """Make ``buffer`` the shard of ``state``; return its record."""
    contents = image.contents(state)
    buffer[: image.size] = b"".join(image.buffers(contents, header))
    return image.describe(contents, header)


@pytest.mark.parametrize("writers", [1, 3])
def test_image_is_the_file_that_is_written_of_the_state(
    tmp_path: Path, writers: int, state_of: Callable[[int], dict[str, Tensor]]
) -> None:
    state = state_of(1)
    layout = ShardLayout(specs_of(state), writers)
    staging = CheckpointStore(tmp_path).staging(HEADER.step, HEADER.generation, 1)

    for writer in range(writers):
        image = lay_out_shard(layout, writer, HEADER.run_id)
        buffer = bytearray(b"\xff" * (image.size + 100))
        record = filled(image, memoryview(buffer), state, HEADER)

        assert staging.write_shard(state, layout, writer, HEADER) == record
        path = staging.path / shard_name(writer, writers)
        assert path.read_bytes() == buffer[: image.size]
        assert buffer[image.size :] == b"\xff" * 100


def test_every_flipped_byte_of_an_image_is_found(store: CheckpointStore) -> None:
    state: dict[str, Tensor] = {"a": np.arange(40.0), "b": np.arange(3, dtype=np.int8)}
    layout = ShardLayout(specs_of(state), 1)
    image = lay_out_shard(layout, 0, "run")
    buffer = bytearray(image.size)
    record = filled(image, memoryview(buffer), state, HEADER)
    record.check(memoryview(buffer))
    staging = store.staging(HEADER.step, HEADER.generation, 1)

    for place in range(0, image.size):
        buffer[place] ^= 4
        with pytest.raises(SnapshotDamaged, match=r"tensor '[ab]' have changed|changed outside"):
            record.check(memoryview(buffer))
        buffer[place] ^= 4
    buffer[-1] ^= 1
    with pytest.raises(SnapshotDamaged):
        staging.write_image(memoryview(buffer), record, 1)

    assert list(staging.path.iterdir()) == []


def state_of(shapes: dict[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray]:
    random = np.random.default_rng(len(shapes))
    return {
        name: (1 + random.integers(0, 100, shape)).astype(dtype)
        for name, (shape, dtype) in shapes.items()
    }


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_each_shard_is_written_by_one_host_and_held_by_two(hosts: int, shards: int) -> None:
    written = [written_by(host, hosts, shards) for host in range(hosts)]
    held = [held_by(host, hosts, shards) for host in range(hosts)]

    assert [shard for found in written for shard in found] == list(range(shards))
    assert max(map(len, written)) - min(map(len, written)) <= 1
    assert Counter(shard for found in held for shard in found) == Counter(
        shard for shard in range(shards) for _ in range(min(2, hosts))
    )
    for host in range(hosts):
        assert {*written[host], *written[host - 1]} == set(held[host])


@given(st.integers(0, 5), st.integers(1, 6))
def test_header_tells_of_which_save_all_parts_are(torn: int, parts: int) -> None:
    memory, older, save = memoryview(bytearray(HEADER_BYTES)), (5, 1, 1), (6, 1, 2)
    for part in range(parts):
        note_part(memory, part, parts, older, "a" * 32)
    assert digests_of(memory, older) == {"a" * 32}

    for part in range(parts):
        assert digests_of(memory, save) is None
        note_part(memory, part, parts, save, "b" * 32)

    assert digests_of(memory, save) == {"b" * 32}
    note_part(memory, torn % parts, parts, save, "c" * 32)
    assert "c" * 32 in (digests_of(memory, save) or ())
    note_part(memory, torn % parts, parts, older, "b" * 32)
    assert digests_of(memory, save) is None


@given(STATES, st.integers(1, 5), st.integers(1, 7), st.integers(1, 4))
def test_shares_of_any_number_of_workers_make_the_shards_that_one_writer_makes(
    shapes: dict[str, tuple[tuple[int, ...], str]], shards: int, parts: int, hosts: int
) -> None:
    state = state_of(shapes)
    layout = ShardLayout(specs_of(state), shards)
    image_map = ImageMap.of(layout, held_by(hosts // 2, hosts, shards))
    memory = memoryview(bytearray(image_map.size))

    for part in reversed(range(parts)):
        share = ShareImage(image_map, share_of(image_map, part, parts), "run")
        share.copy(memory, state, SHARED)
        share.describe(memory, state, SHARED)

    for index in image_map.pieces:
        image = lay_out_shard(layout, index, "run")
        expected = bytearray(image.size)
        record = filled(image, memoryview(expected), state, SHARED)
        packed = image_map.packed(memory, index)
        assert image_map.record(packed, index, SHARED) == record
        assert ImageMap.of(layout, (index,)).rows_of(record, SHARED) == packed
        assert image_map.image(memory, index, record.size) == expected


@given(st.lists(st.integers(0, 20_000), max_size=6), st.integers(1, 4), st.integers(1, 9))
def test_shares_cover_each_byte_once_and_digest_each_piece_once(
    sizes: list[int], shards: int, parts: int
) -> None:
    specs = tuple(TensorSpec(f"t{i}", "uint8", (size,)) for i, size in enumerate(sizes))
    image_map = ImageMap.of(ShardLayout(specs, shards), range(shards))
    shares = [share_of(image_map, part, parts) for part in range(parts)]

    covered = sorted(s for share in shares for s in share.stretches)
    by_piece: dict[tuple[int, int], int] = {}
    for found in covered:
        assert found.start == by_piece.get((found.shard, found.piece), 0)
        by_piece[(found.shard, found.piece)] = found.stop
    pieces = {
        (shard, index): piece.nbytes
        for shard, found in image_map.pieces.items()
        for index, piece in enumerate(found)
        if piece.nbytes
    }
    assert by_piece == pieces
    assert sorted(place for share in shares for place in share.digested) == sorted(pieces)
    assert sorted(shard for share in shares for shard in share.framed) == list(range(shards))
    assert sum(found.stop - found.start for found in covered) == sum(sizes)


@pytest.mark.parametrize(
    "names",
    [
        ["a" * 1024],
        ["/".join("a" * 512)],
        ["é" * 512],
        [f"layer_{i}/{'/'.join(f'block{i}' for i in range(100))}/kernel" for i in range(50)],
        [f"{'ab/' * 300}{i}" for i in range(200)],
        [f"weight_{i}" for i in range(3000)],
        [f"{i}/{'/'.join('a' * 500)}" for i in range(60)],
    ],
    ids=["long", "deep", "wide", "groups", "shared", "many", "apart"],
)
def test_room_holds_the_file_of_any_names(names: list[str]) -> None:
    specs = tuple(TensorSpec(name, "float32", (1,) * 32) for name in sorted(names))
    layout = ShardLayout(specs, 1)
    image_map = ImageMap.of(layout, (0,))

    size = lay_out_shard(layout, 0, "r" * 1000).size

    assert size < image_map.records[0] - image_map.bases[0]
    assert len(image_map.image(memoryview(bytearray(image_map.size)), 0, size)) == size


def test_file_that_is_larger_than_its_room_is_refused() -> None:
    image_map = ImageMap.of(ShardLayout((TensorSpec("a", "float32", (3,)),), 1), (0,))

    with pytest.raises(StateUnsupported, match="the file of shard 0 needs 9000000 bytes"):
        image_map.image(memoryview(b""), 0, 9_000_000)
