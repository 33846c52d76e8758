"""What a manifest says of pieces and shards, and what it cannot say."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.digest import DigestKind
from holdfast.checkpoint.errors import ManifestInvalid, StateUnsupported
from holdfast.checkpoint.manifest import PieceEntry, ShardEntry, TensorEntry
from holdfast.checkpoint.tensor import TensorSpec

KIND = DigestKind.XXH3_128
DIGEST = "0" * KIND.length
COUNTS = st.integers(0, 2**63 - 1)
DIGESTS = st.text("0123456789abcdef", min_size=KIND.length, max_size=KIND.length)
PIECES = st.builds(PieceEntry, COUNTS, COUNTS, COUNTS, COUNTS, COUNTS, DIGESTS)
SPEC = TensorSpec("kernel", "float32", (4, 3))


def tensor(*cuts: int, shards: int = 1) -> TensorEntry:
    """Return the entry of a tensor of 12 elements that is cut at these places."""
    bounds = [0, *cuts, 12]
    pieces = tuple(
        PieceEntry(place % shards, 0, 4 * (stop - start), start, stop, DIGEST)
        for place, (start, stop) in enumerate(itertools.pairwise(bounds))
    )
    return TensorEntry(SPEC, pieces)


@given(PIECES)
def test_piece_is_read_back_from_its_json(piece: PieceEntry) -> None:
    assert PieceEntry.of(json.loads(json.dumps(piece.as_json())), KIND) == piece


@given(st.builds(ShardEntry, COUNTS, COUNTS, DIGESTS))
def test_shard_is_read_back_from_its_json(shard: ShardEntry) -> None:
    assert ShardEntry.of(json.loads(json.dumps(shard.as_json())), KIND) == shard


@given(st.lists(PIECES, max_size=4), st.lists(st.integers(0, 99), max_size=4))
def test_tensor_is_read_back_from_its_json(pieces: list[PieceEntry], shape: list[int]) -> None:
    entry = TensorEntry(TensorSpec("a/b", "float64", tuple(shape)), tuple(pieces))

    assert TensorEntry.of(json.loads(json.dumps(entry.as_json())), KIND) == entry


@pytest.mark.parametrize("name", ["shard", "offset", "bytes", "start", "stop"])
@pytest.mark.parametrize("value", [-1, 2**63, 1.0, "1", True, None])
def test_number_of_a_piece_that_is_none_is_refused_by_name(name: str, value: object) -> None:
    document = PieceEntry(0, 0, 4, 0, 1, DIGEST).as_json() | {name: value}

    with pytest.raises(ValueError, match=f"{name} of a piece"):
        PieceEntry.of(document, KIND)


@pytest.mark.parametrize("name", ["shard", "offset", "bytes", "start", "stop", "digest"])
def test_piece_that_lacks_something_is_refused_by_name(name: str) -> None:
    document = PieceEntry(0, 0, 4, 0, 1, DIGEST).as_json()
    del document[name]

    with pytest.raises(ValueError, match=f"a piece has no {name}"):
        PieceEntry.of(document, KIND)


@pytest.mark.parametrize("digest", ["", DIGEST[1:], DIGEST + "0", "G" + DIGEST[1:]])
def test_digest_of_another_form_is_refused(digest: str) -> None:
    for document, read in (
        (PieceEntry(0, 0, 4, 0, 1, digest).as_json(), PieceEntry.of),
        (ShardEntry(0, 4, digest).as_json(), ShardEntry.of),
    ):
        with pytest.raises(ValueError, match=f"is not {KIND.length} hexadecimal digits"):
            read(document, KIND)


@pytest.mark.parametrize("document", [None, [], "piece", 3])
def test_what_is_no_object_is_no_entry(document: object) -> None:
    for read in (PieceEntry.of, ShardEntry.of, TensorEntry.of):
        with pytest.raises(ValueError, match="is not an object"):
            read(document, KIND)


def test_tensor_of_a_dtype_that_no_state_has_is_refused() -> None:
    document = tensor().as_json() | {"dtype": "|O"}

    with pytest.raises(StateUnsupported):
        TensorEntry.of(document, KIND)


@given(st.sets(st.integers(1, 11)), st.integers(1, 5))
def test_pieces_that_follow_each_other_tile_their_tensor(cuts: set[int], shards: int) -> None:
    tensor(*sorted(cuts), shards=shards).check_tiling(writers=shards)


@given(st.sets(st.integers(1, 11), min_size=1), st.data())
def test_piece_that_is_left_out_is_noticed(cuts: set[int], data: st.DataObject) -> None:
    whole = tensor(*sorted(cuts))
    left_out = data.draw(st.integers(0, len(whole.pieces) - 1))
    pieces = whole.pieces[:left_out] + whole.pieces[left_out + 1 :]

    with pytest.raises(ManifestInvalid, match=r"do not tile it|of 12 elements"):
        TensorEntry(SPEC, pieces).check_tiling(writers=1)


@given(st.sets(st.integers(1, 11), min_size=1), st.data())
def test_pieces_in_another_order_are_noticed(cuts: set[int], data: st.DataObject) -> None:
    whole = tensor(*sorted(cuts))
    order = data.draw(st.permutations(whole.pieces).filter(lambda found: found != [*whole.pieces]))

    with pytest.raises(ManifestInvalid, match="do not tile it"):
        TensorEntry(SPEC, tuple(order)).check_tiling(writers=1)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shard": 2}, "is in no shard"),
        ({"bytes": 47}, "has a wrong size"),
        ({"stop": 0, "bytes": 0}, "do not tile it"),
        ({"stop": 13, "bytes": 52}, "13 of 12 elements"),
        ({"start": 1}, "do not tile it"),
    ],
)
def test_piece_that_cannot_be_is_refused(change: dict[str, int], words: str) -> None:
    piece = dataclasses.replace(tensor().pieces[0], **change)

    with pytest.raises(ManifestInvalid, match=words):
        TensorEntry(SPEC, (piece,)).check_tiling(writers=2)


def test_empty_tensor_has_no_pieces() -> None:
    empty = TensorSpec("none", "float32", (0, 3))

    TensorEntry(empty, ()).check_tiling(writers=1)
    with pytest.raises(ManifestInvalid):
        TensorEntry(empty, (PieceEntry(0, 0, 0, 0, 0, DIGEST),)).check_tiling(writers=1)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=8))
def test_pieces_lie_apart_if_and_only_if_no_byte_is_of_two(spans: list[tuple[int, int]]) -> None:
    placed = [
        (tensor(), PieceEntry(0, offset, size, 0, 1, DIGEST)) for offset, size in sorted(spans)
    ]
    taken = [byte for offset, size in spans for byte in range(offset, offset + size)]
    shard = ShardEntry(0, 100, DIGEST)

    if len(taken) == len(set(taken)):
        shard.check_apart(placed)
    else:
        with pytest.raises(ManifestInvalid, match="overlaps another"):
            shard.check_apart(placed)


def test_shard_that_ends_before_its_last_piece_is_refused() -> None:
    piece = PieceEntry(0, 90, 12, 0, 3, DIGEST)

    ShardEntry(3, 102, DIGEST).check_apart([(tensor(), piece)])
    with pytest.raises(ManifestInvalid, match="shard 3 is smaller than its pieces"):
        ShardEntry(3, 101, DIGEST).check_apart([(tensor(), piece)])
