"""Where each tensor stands in a vector, and how many graphs are kept."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.exchange.memory import ALIGNMENT_BYTES
from holdfast.runtime.model.graphs import (
    MOST_KEPT,
    ROW_FLOATS,
    TOLD_AT,
    GraphCache,
    VectorLayout,
)

pytestmark = pytest.mark.tensorflow

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
    between = [range(gap.start, gap.stop) for gap in layout.padding]
    assert sorted(itertools.chain(*of_tensors, *between)) == list(range(layout.size))


@given(SHAPES)
def test_vector_is_whole_rows_and_wastes_less_than_one_a_tensor(
    shapes: list[tuple[int, ...]],
) -> None:
    layout = VectorLayout.of(shapes)

    assert layout.size % ROW_FLOATS == 0
    assert layout.size - sum(map(math.prod, shapes)) <= len(shapes) * (ROW_FLOATS - 1)
    assert all(0 < gap.stop - gap.start < ROW_FLOATS for gap in layout.padding)


class Clock:
    """Two seconds pass from one look to the next."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


def test_graph_is_made_once_for_each_shape() -> None:
    cache, made = GraphCache(), []

    found = [cache.get(key, lambda key=key: made.append(key) or key) for key in (1, 2, 1, 2, 2)]

    assert found == [1, 2, 1, 2, 2]
    assert made == [1, 2]


def test_user_hears_once_of_many_shapes_with_figures() -> None:
    cache = GraphCache(Clock())
    for key in range(TOLD_AT - 1):
        cache.get(key, object)

    with pytest.warns(UserWarning, match=rf"traced for {TOLD_AT} shapes .* {2 * TOLD_AT} s: pad"):
        cache.get(TOLD_AT, object)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.get(TOLD_AT + 1, object)


@pytest.mark.filterwarnings("ignore:the model was traced")
def test_oldest_graph_goes_when_there_are_too_many() -> None:
    cache = GraphCache()
    first = [cache.get(key, object) for key in range(MOST_KEPT)]

    cache.get("one more", object)

    assert len(cache) == MOST_KEPT
    assert cache.get(1, object) is first[1]
    assert cache.get(0, object) is not first[0]
