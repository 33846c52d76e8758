"""Data made of other data: a range of their samples, or all of them with class weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.runtime.data.samples import (
    ArrayData,
    SampleIds,
    SampleRange,
    Samples,
    WeighedByClass,
    class_weights_of,
    no_classes,
)
from holdfast.runtime.errors import ProgramError

X = np.arange(20, dtype=np.float32).reshape(10, 2)
CLASSES = np.arange(10) % 3


class Nameless:
    """Data that cannot tell whether they are the same ones, with weights only if there are any."""

    def __init__(self, weights: Any = None) -> None:
        self._weights = weights

    def __len__(self) -> int:
        return len(X)

    def read(self, ids: SampleIds) -> Samples:
        return X[ids], CLASSES[ids], self._weights


def test_range_counts_its_samples_from_zero() -> None:
    part = SampleRange(ArrayData(X, CLASSES), 3, 8)

    x, y = part.read(np.array([4, 0, 2]))  # type: ignore[misc]

    assert len(part) == 5
    np.testing.assert_array_equal(x, X[[7, 3, 5]])
    np.testing.assert_array_equal(y, CLASSES[[7, 3, 5]])


def test_range_of_a_range_lies_within_it() -> None:
    part = SampleRange(SampleRange(ArrayData(X), 2, 9), 3, 5)

    np.testing.assert_array_equal(part.read(np.arange(2))[0], X[5:7])


@pytest.mark.parametrize(
    "other",
    [
        SampleRange(ArrayData(X), 1, 4),
        SampleRange(ArrayData(X), 0, 5),
        SampleRange(ArrayData(X + 1), 0, 4),
        SampleRange(Nameless(), 0, 4),
    ],
    ids=["start", "stop", "data", "nameless"],
)
def test_fingerprint_of_a_range_tells_other_samples(other: SampleRange) -> None:
    part = SampleRange(ArrayData(X), 0, 4)

    assert part.fingerprint() == SampleRange(ArrayData(X.copy()), 0, 4).fingerprint()
    assert part.fingerprint() != other.fingerprint()


def test_data_without_a_fingerprint_are_compared_by_their_range() -> None:
    assert SampleRange(Nameless(), 2, 4).fingerprint() == "unknown 2:4"


@pytest.mark.parametrize("data", [ArrayData(X, CLASSES), Nameless()], ids=["two parts", "None"])
def test_each_sample_weighs_what_its_class_does(data: Any) -> None:
    weighed = WeighedByClass(data, {0: 0.5, 2: 4.0})

    x, y, weights = weighed.read(np.array([2, 0, 1]))  # type: ignore[misc]

    assert len(weighed) == 10
    np.testing.assert_array_equal(x, X[[2, 0, 1]])
    assert y.tolist() == [2, 0, 1]
    assert weights.tolist() == [4.0, 0.5, 1.0]


def test_class_weights_on_top_of_sample_weights_are_refused() -> None:
    with pytest.raises(ProgramError, match="got class_weight, and data with sample weights"):
        WeighedByClass(ArrayData(X, CLASSES, np.ones(10)), {0: 2.0}).read(np.arange(3))


def test_fingerprint_tells_other_class_weights_in_any_order() -> None:
    data = ArrayData(X, CLASSES)
    first = WeighedByClass(data, {0: 0.5, 1: 2.0}).fingerprint()

    assert WeighedByClass(data, {1: 2.0, 0: 0.5}).fingerprint() == first
    assert WeighedByClass(data, {0: 2.0, 1: 0.5}).fingerprint() != first
    assert WeighedByClass(ArrayData(X + 1, CLASSES), {0: 0.5, 1: 2.0}).fingerprint() != first


@pytest.mark.parametrize(
    "y", [np.array([0, 1, 1]), np.array([[0.0], [1.0], [1.0]]), np.eye(3)[[0, 1, 1]]]
)
def test_class_weights_follow_the_class(y: Any) -> None:
    assert class_weights_of(y, {1: 0.5, 2: 9.0}).tolist() == [1.0, 0.5, 0.5]
    assert class_weights_of(y, {1.0: 0.5, "1": 9.0}).tolist() == [1.0, 0.5, 0.5]
    assert no_classes({0: 2.0, "1": 9.0}) == ["1"]


@pytest.mark.parametrize("y", [{"a": CLASSES, "b": CLASSES}, None])
def test_class_weights_need_one_array_of_targets(y: Any) -> None:
    with pytest.raises(
        ProgramError, match=r"class_weight=\.\.\.\) needs one array of targets, got"
    ):
        class_weights_of(y, {0: 1.0, 1: 2.0})
