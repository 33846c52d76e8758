"""Where tensors stand in a flat vector: aligned, apart, and with zeros between them."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.exchange.memory import ALIGNMENT_BYTES
from holdfast.runtime.model.graphs import ROW_FLOATS, Place, VectorLayout

SHAPES = st.lists(st.lists(st.integers(0, 20), max_size=3).map(tuple), min_size=1, max_size=8)


@given(SHAPES)
def test_every_tensor_has_its_elements_where_a_row_begins(shapes: list[tuple[int, ...]]) -> None:
    layout = VectorLayout.of(shapes)

    assert [place.shape for place in layout.places] == shapes
    assert [place.stop - place.start for place in layout.places] == [*map(math.prod, shapes)]
    assert all(4 * place.start % ALIGNMENT_BYTES == 0 for place in layout.places)


@given(SHAPES)
def test_tensors_and_padding_are_the_whole_vector_once(shapes: list[tuple[int, ...]]) -> None:
    layout = VectorLayout.of(shapes)

    of_tensors = [range(place.start, place.stop) for place in layout.places]
    between = [range(gap.start, gap.stop) for gap in layout.padding()]
    assert sorted(itertools.chain(*of_tensors, *between)) == list(range(layout.size))


@given(SHAPES)
def test_vector_is_whole_rows_and_wastes_less_than_one_a_tensor(
    shapes: list[tuple[int, ...]],
) -> None:
    layout = VectorLayout.of(shapes)

    assert layout.size % ROW_FLOATS == 0
    assert layout.size - sum(map(math.prod, shapes)) <= len(shapes) * (ROW_FLOATS - 1)
    assert all(0 < gap.stop - gap.start < ROW_FLOATS for gap in layout.padding())


@pytest.mark.parametrize(
    ("shapes", "places", "size"),
    [
        ([], (), 0),
        ([()], (Place(0, 1, ()),), 16),
        ([(16,), (2,)], (Place(0, 16, (16,)), Place(16, 18, (2,))), 32),
        ([(17,), (3, 3)], (Place(0, 17, (17,)), Place(32, 41, (3, 3))), 48),
        ([(0, 5), (1,)], (Place(0, 0, (0, 5)), Place(0, 1, (1,))), 16),
    ],
    ids=["nothing", "scalar", "full row", "row and a bit", "empty"],
)
def test_layout_never_changes(
    shapes: list[tuple[int, ...]], places: tuple[Place, ...], size: int
) -> None:
    assert VectorLayout.of(shapes) == VectorLayout(places, size)
