"""Samples in arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from holdfast.runtime.data.samples import ArrayData, Data, check_data, read_microbatch
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.memory import ALIGNMENT_BYTES


def _ids(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int64)


@pytest.fixture
def data() -> ArrayData:
    return ArrayData(np.arange(20).reshape(10, 2), np.arange(10) * 100)


def test_samples_come_in_the_order_of_the_ids(data: ArrayData) -> None:
    x, y = data.read(_ids(7, 2, 2))

    assert x.tolist() == [[14, 15], [4, 5], [4, 5]]
    assert y.tolist() == [700, 200, 200]


@pytest.mark.parametrize("ids", [(3, 4, 5), (0,), tuple(range(10))])
def test_consecutive_samples_are_views(ids: tuple[int, ...]) -> None:
    inputs = np.arange(20).reshape(10, 2)
    data = ArrayData(inputs, np.arange(10))

    x, y = data.read(_ids(*ids))

    assert np.shares_memory(x, inputs)
    assert y.tolist() == list(ids)


@pytest.mark.parametrize("ids", [(3, 5, 4, 6), (5, 4, 3), (3, 3, 5), (-1, 0)])
def test_other_samples_are_copied_right(data: ArrayData, ids: tuple[int, ...]) -> None:
    """First and last of some of these are as far apart as those of a run."""
    _, y = data.read(_ids(*ids))

    assert y.tolist() == [(i % 10) * 100 for i in ids]


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int64, "S3"])
def test_copied_samples_lie_where_tensorflow_can_use_them(dtype: npt.DTypeLike) -> None:
    values = np.arange(40).reshape(10, 4).astype(dtype)
    x, _ = ArrayData(values, np.zeros(10)).read(np.array([7, 0, 7, 3]))
    assert x.ctypes.data % ALIGNMENT_BYTES == 0
    np.testing.assert_array_equal(x, values[[7, 0, 7, 3]])


def test_ids_beyond_the_data_are_refused(data: ArrayData) -> None:
    with pytest.raises(IndexError, match="12"):
        data.read(_ids(3, 12))
    with pytest.raises(IndexError, match="10 is out of bounds"):
        data.read(_ids(9, 10, 11))


class SparseTensor:
    """As TensorFlow's, which this test need not load."""

    shape = (3, 2)


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (np.zeros((3, 2)), np.zeros(4), "x has 3 samples but y has 4"),
        # Two arrays in a list are two inputs, as in Keras, and not two samples.
        ([np.zeros(5)] * 2, np.zeros(2), r"x\[0\] has 5 samples but y has 2.* taken as 2 inputs"),
        ({"a": np.zeros(3), "b": np.zeros(2)}, None, r"x\['a'\] has 3 samples but x\['b'\] has 2"),
        (np.zeros((0, 2)), np.zeros(0), "x has the shape .* holds no samples"),
        (np.zeros((1, 2)), np.zeros(0), "y has the shape .* holds no samples"),
        (np.float32(1), np.zeros(1), "x has the shape .* holds no samples"),
        (np.array([np.zeros(2), np.zeros(3)], object), np.zeros(2), "differ in shape or type"),
        ({}, None, "x is an empty dict"),
        (None, None, "x is None"),
        ({"a": SparseTensor()}, None, r"x\['a'\] is a SparseTensor.* tf\.sparse\.to_dense"),
        (map(int, "12"), None, "x is a map, whose samples cannot be read: give arrays"),
    ],
)
def test_what_holds_no_samples_alike_is_refused_by_name(x: Any, y: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        ArrayData(x, y)


def test_nests_of_arrays_of_any_type_are_read_together() -> None:
    names = np.array(["a", "bb", "c"], dtype=object)
    data = ArrayData({"age": np.arange(3.0), "name": names}, [np.arange(3), np.arange(6)[::2]])

    x, y = data.read(_ids(2, 0))

    assert x["age"].tolist() == [2.0, 0.0]
    assert x["name"].tolist() == ["c", "a"]
    assert [part.tolist() for part in y] == [[2, 0], [4, 0]]


def test_targets_and_weights_may_be_left_out_or_given() -> None:
    x, y = ArrayData(np.arange(4)).read(_ids(1))
    _, none, weights = ArrayData(np.arange(4), None, np.arange(4) / 4).read(_ids(3))

    assert (x.tolist(), y) == ([1], None)
    assert (none, weights.tolist()) == (None, [0.75])


def _reading(parts: object) -> Data:
    class Own:
        def __len__(self) -> int:
            return 9

        def read(self, ids: np.ndarray) -> object:
            return parts

    return Own()  # type: ignore[return-value]


def test_a_microbatch_has_inputs_targets_and_weights() -> None:
    parts = {"a": np.zeros(2)}, None, np.ones(2)

    batch = read_microbatch(_reading(parts), _ids(4, 5), seed=3)

    assert (batch.samples, batch.seed, batch.y) == (2, 3, None)
    assert batch.weights is parts[2]


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (np.zeros(2), "returned a ndarray: return .x, y."),
        ((), "returned 0 parts"),
        ((1, 2, 3, 4), "returned 4 parts"),
        ((np.zeros(2), np.zeros(3)), "returned 3 samples in y for 2 ids"),
        (({"a": np.zeros(1)}, None), r"returned 1 samples in x\['a'\] for 2 ids"),
    ],
)
def test_data_that_gives_something_else_is_refused(parts: object, words: str) -> None:
    with pytest.raises(ProgramError, match=f"Own.read.ids. {words}"):
        read_microbatch(_reading(parts), _ids(4, 5), seed=3)


def test_what_is_no_data_is_refused_with_advice() -> None:
    check_data("data", ArrayData(np.zeros(1)))
    with pytest.raises(ProgramError, match=r"validation is a tuple.* give ArrayData\(x, y\)"):
        check_data("validation", (np.zeros(1), np.zeros(1)))
    with pytest.raises(ProgramError, match=r"data is a Pair.*methods __len__\(\) and read\(ids\)"):
        check_data("data", type("Pair", (), {})())
