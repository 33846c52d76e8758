"""Tensors enter and leave TensorFlow as they lie in memory, and each shape has one graph."""

from __future__ import annotations

import gc
import itertools
import math
import warnings
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.exchange.memory import ALIGNMENT_BYTES, aligned_array
from holdfast.runtime.model.graphs import (
    MOST_KEPT,
    ROW_FLOATS,
    TOLD_AT,
    GraphCache,
    VectorLayout,
    flat_graph,
    flat_tensors,
)
from holdfast.runtime.model.replica import Microbatch

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


SHAPE = (256, 128)


def _aligned(dtype: str) -> np.ndarray:
    array = aligned_array(SHAPE, np.dtype(dtype))
    array[:] = np.arange(array.size).reshape(SHAPE) % 251
    return array


def _tensor(array: np.ndarray) -> Any:
    (tensor,) = flat_tensors(Microbatch(array, None, 0, None))
    return tensor


@pytest.mark.parametrize("rows", [1, 256])
@pytest.mark.parametrize("dtype", ["f4", "i4", "i8", "u1", "u2"])
def test_an_aligned_array_is_borrowed_even_if_it_is_protected(dtype: str, rows: int) -> None:
    array = _aligned(dtype)[:rows]
    protected = array.view()
    protected.flags.writeable = False
    tensor = _tensor(protected)
    assert tensor.dtype.as_numpy_dtype == array.dtype
    np.testing.assert_array_equal(tensor.numpy(), array)
    array[0, 0] = 77  # seen by the tensor, because the memory is one
    assert tensor.numpy()[0, 0] == 77


@pytest.mark.parametrize("make", [np.asfortranarray, lambda a: a.astype(">f4"), lambda a: a[:, 1:]])
def test_other_arrays_are_copied(make: Any) -> None:
    array = make(_aligned("f4"))
    expected = array.astype("f4")
    tensor = _tensor(array)
    array[0, 0] = 77
    np.testing.assert_array_equal(tensor.numpy(), expected)


def test_wide_floats_become_float32() -> None:
    assert _tensor(_aligned("f8")).dtype.as_numpy_dtype == np.float32


def test_a_borrowed_array_lives_as_long_as_its_tensor() -> None:
    array = _aligned("f4")
    memory = weakref.ref(array)
    tensor = _tensor(array)
    expected = array.copy()
    del array
    gc.collect()
    assert memory() is not None
    np.testing.assert_array_equal(tensor.numpy(), expected)
    del tensor
    gc.collect()
    assert memory() is None


def test_traced_graph_takes_flat_tensors_and_follows_its_variables(tf: SimpleNamespace) -> None:
    number = tf.tensorflow.TensorSpec((), tf.tensorflow.float32)
    factor = tf.tensorflow.Variable(2.0)

    def function(pair: Any, last: Any) -> Any:
        return [factor * pair[0] + pair[1], last]

    graph = flat_graph(function, [number, number], number)

    inputs = [tf.tensorflow.constant(value) for value in (3.0, 4.0, 5.0)]
    assert [float(output) for output in graph(*inputs)] == [10.0, 5.0]
    factor.assign(10.0)
    assert [float(output) for output in graph(*inputs)] == [34.0, 5.0]
    assert graph.graph.captured_inputs
