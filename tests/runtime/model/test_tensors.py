"""Microbatches as tensors: arrays are borrowed where TensorFlow can use them."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.exchange.memory import aligned_array
from holdfast.runtime.model.model_call import flat_graph, flat_tensors
from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

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
