"""Weights that callbacks keep have places of fixed shape; callbacks that keep some are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.keras.callback_state import WeightPlaces, sets_of

KERNEL, BIAS = np.ones((2, 3), np.float32), np.ones(3, np.float32)
WEIGHTS = (KERNEL, BIAS)


def layout(places: WeightPlaces) -> list[tuple[str, Any, Any]]:
    return [(name, array.shape, array.dtype) for name, array in places.tensors().items()]


def held(places: WeightPlaces) -> list[float]:
    """Return the first number in each place."""
    return [float(array.flat[0]) for array in places.tensors().values()]


@pytest.mark.parametrize(
    "array",
    [np.ones((3, 2), np.float32), np.ones(3, np.float64), np.ones((), np.float32)],
    ids=["shape", "dtype", "scalar"],
)
def test_array_of_another_kind_finds_no_place(array: Any) -> None:
    places = WeightPlaces(1, WEIGHTS)

    assert places.keep(array) is None
    assert held(places) == [0, 0]


@given(st.lists(st.sampled_from([KERNEL, BIAS, np.ones(4), None]), max_size=12))
def test_layout_never_changes_and_no_place_is_given_twice(arrays: list[Any]) -> None:
    places = WeightPlaces(2, WEIGHTS)
    before = layout(places)
    numbers: list[int] = []
    for array in arrays:
        if array is None:
            places.empty()
            numbers = []
        elif (number := places.keep(array)) is not None:
            numbers.append(number)

    assert layout(places) == before
    assert len(set(numbers)) == len(numbers)


class Callback:
    __module__ = "keras.fake"

    model: Any = None

    def on_epoch_end(self) -> Any:
        return self.model.get_weights()  # Keras's own code does not count


class EarlyStopping(Callback):
    __module__ = "keras.fake"

    def __init__(self, *, restore_best_weights: bool = False) -> None:
        self.restore_best_weights = restore_best_weights


class Reader(Callback):
    def on_epoch_end(self) -> Any:
        return self.model.get_weights()


class Averager(Reader):
    def on_train_begin(self) -> Any:
        return [layer.trainable_weights for layer in self.model.layers]

    def on_train_end(self) -> Any:
        return lambda: self.model.weights


class OwnStopping(EarlyStopping):
    def on_train_end(self) -> Any:
        return self.model.get_weights()


class Setter(Callback):
    weights = 3

    def on_epoch_end(self) -> Any:
        self.model.set_weights([])


@pytest.mark.parametrize(
    ("callback", "sets"),
    [
        (Callback(), 0),
        (EarlyStopping(), 0),
        (EarlyStopping(restore_best_weights=True), 1),
        (Reader(), 1),
        (Averager(), 3),
        (OwnStopping(), 1),
        (OwnStopping(restore_best_weights=True), 2),
        (Setter(), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sets_of_weights_that_a_callback_may_keep_are_counted(callback: Any, sets: int) -> None:
    assert sets_of(callback) == sets
