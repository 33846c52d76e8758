"""Pieces of all writers tile every tensor, evenly."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import StateUnsupported
from holdfast.checkpoint.tensor import CUT_BYTES, ShardLayout, TensorSpec, specs_of

shapes = st.lists(st.integers(0, 40), max_size=4).map(tuple)
dtypes = st.sampled_from(["float32", "float64", "bool", "float16", "bfloat16", "int64"])
spec_lists = st.dictionaries(
    st.text("ab/é", max_size=6), st.tuples(dtypes, shapes), max_size=8
).map(lambda found: tuple(TensorSpec(name, *found[name]) for name in sorted(found)))


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


def test_cuts_lie_at_multiples_of_a_page() -> None:
    layout = ShardLayout((TensorSpec("a", "float32", (1_000_000,)),), 3)

    starts = [layout.pieces(writer)[0].start for writer in range(3)]

    assert starts == [0, 332_800, 666_624]
    assert all(start * 4 % CUT_BYTES == 0 for start in starts)


def test_tiny_state_is_stored_by_one_writer() -> None:
    layout = ShardLayout((TensorSpec("a", "float32", (10,)),), 4)

    counts = [len(layout.pieces(writer)) for writer in range(4)]

    assert sum(counts) == 1


def test_specs_are_in_the_order_of_names() -> None:
    state = {"b": np.zeros(3, np.float32), "a": np.zeros((), bool)}

    specs = specs_of(state)

    assert specs == (TensorSpec("a", "bool", ()), TensorSpec("b", "float32", (3,)))


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
