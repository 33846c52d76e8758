"""Graphs are made once for each shape, kept within a bound, and told of when they are many."""

from __future__ import annotations

import warnings

import pytest

from holdfast.runtime.model.graphs import MOST_KEPT, TOLD_AT, GraphCache


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
