"""Stored bytes of any array, and the share of each writer."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.tensor import (
    CUT_BYTES,
    ShardLayout,
    Tensor,
    TensorSpec,
    bytes_of,
    empty_tensor,
    specs_of,
    state_sha256,
)

shapes = st.lists(st.integers(0, 40), max_size=4).map(tuple)
dtypes = st.sampled_from(["float32", "float64", "bool", "float16", "bfloat16", "int64"])
spec_lists = st.dictionaries(
    st.text("ab/é", max_size=6), st.tuples(dtypes, shapes), max_size=8
).map(lambda found: tuple(TensorSpec(name, *found[name]) for name in sorted(found)))


@pytest.mark.parametrize(
    "tensor",
    [
        np.asfortranarray(np.arange(60.0).reshape(3, 4, 5)),
        np.arange(240, dtype=np.int32).reshape(6, 8, 5)[::2, ::-2],
        np.broadcast_to(np.arange(5, dtype=np.float16), (12, 5)),
        np.arange(60, dtype=">i8").reshape(12, 5),
        np.arange(60).astype(ml_dtypes.bfloat16).reshape(5, 12).T,
    ],
    ids=["fortran", "strided", "broadcast", "big-endian", "bfloat16"],
)
def test_any_memory_layout_gives_the_bytes_of_the_plain_array(tensor: np.ndarray) -> None:
    plain = np.ascontiguousarray(tensor)
    plain = plain.astype(plain.dtype.newbyteorder("<"))
    size = tensor.dtype.itemsize

    for start, stop in ((0, tensor.size), (7, 29), (0, 1), (tensor.size - 1, tensor.size), (5, 5)):
        assert bytes(bytes_of(tensor, start, stop)) == plain.tobytes()[start * size : stop * size]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_large_tensor_begins_at_a_huge_page_and_is_an_ordinary_array(dtype: str) -> None:
    shape = (3, 2**21 + 1)

    tensor = empty_tensor(dtype, shape)

    assert tensor.ctypes.data % 2**21 == 0
    assert (tensor.dtype.name, tensor.shape) == (dtype, shape)
    assert tensor.flags.c_contiguous
    assert tensor.flags.writeable


@given(spec_lists, st.integers(1, 9))
def test_pieces_of_all_writers_tile_every_tensor(
    specs: tuple[TensorSpec, ...], writers: int
) -> None:
    layout = ShardLayout(specs, writers)

    pieces = [piece for writer in range(writers) for piece in layout.pieces(writer)]

    for spec in specs:
        ends = [(piece.start, piece.stop) for piece in pieces if piece.spec == spec]
        assert ends[0][0] == 0
        assert ends[-1][1] == spec.size
        assert all(left[1] == right[0] for left, right in itertools.pairwise(ends))


@given(spec_lists, st.integers(1, 9))
def test_writers_share_the_bytes_evenly(specs: tuple[TensorSpec, ...], writers: int) -> None:
    layout = ShardLayout(specs, writers)

    loads = [sum(piece.nbytes for piece in layout.pieces(w)) for w in range(writers)]

    assert sum(loads) == layout.nbytes
    assert max(loads) - layout.nbytes / writers < CUT_BYTES + 8


@pytest.mark.parametrize(
    ("name", "tensor", "reason"),
    [
        ("a", np.array(["text"]), "tensor 'a' cannot be stored: dtype str128"),
        ("a", np.array([object()]), "dtype object cannot be stored"),
        ("a", np.zeros(2, np.complex64), "dtype complex64 cannot be stored"),
        ("\ud800", np.zeros(2), "not valid Unicode"),
        ("é" * 513, np.zeros(2), "has 1026 bytes; rename it to at most 1024"),
        ("a", np.zeros((1,) * 33), "has 33 dimensions; reshape it to at most 32"),
    ],
)
def test_tensors_that_cannot_be_stored_are_refused(
    name: str, tensor: np.ndarray, reason: str
) -> None:
    with pytest.raises(StateUnsupported, match=reason):
        specs_of({name: tensor})


def test_impossible_layouts_are_refused() -> None:
    spec = TensorSpec("a", "float32", (1,))

    with pytest.raises(ValueError, match="at least 1 writer"):
        ShardLayout((spec,), 0)
    with pytest.raises(ValueError, match="use specs_of"):
        ShardLayout((spec, spec), 1)
    with pytest.raises(ValueError, match="writer 2 is not one of 2"):
        ShardLayout((spec,), 2).pieces(2)


DIGESTED: dict[str, Tensor] = {
    "kernel": np.arange(12, dtype=np.float32).reshape(3, 4),
    "bias": np.zeros(4, np.float32),
}


def test_state_digest_ignores_order_strides_and_byte_order() -> None:
    other: dict[str, Tensor] = {
        "bias": DIGESTED["bias"].astype(">f4"),
        "kernel": np.asfortranarray(DIGESTED["kernel"]),
    }

    assert state_sha256(other) == state_sha256(DIGESTED)


@pytest.mark.parametrize(
    "change",
    [
        {"bias": np.array([0, 0, 0, -0.0], np.float32)},
        {"bias": np.zeros((4, 1), np.float32)},
        {"bias": np.zeros(4, np.int32)},
        {"more": np.zeros(0, np.float32)},
    ],
    ids=["bits", "shape", "dtype", "name"],
)
def test_state_digest_sees_every_difference(change: dict[str, Tensor]) -> None:
    assert state_sha256(DIGESTED | change) != state_sha256(DIGESTED)


def test_state_digest_is_the_same_everywhere() -> None:
    """A constant, so that a change of the definition cannot go unnoticed."""
    assert state_sha256(DIGESTED) == (
        "d12f6e1e2ce78d65edc3af8e317b9d749fd35e6b8d72f664b636e17b35ae99a7"
    )
