"""Arguments of ``fit`` become data as Keras understands them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.fit_call import FitCall
from holdfast.runtime.fit.fit_data import data_of, weights_of_classes
from holdfast.runtime.model.data import ArrayData

X = np.arange(20, dtype=np.float32).reshape(10, 2)
Y = np.arange(10) % 3
ALL = np.arange(10)


def test_last_part_is_held_out() -> None:
    data = data_of(FitCall({"a": X, "b": Y}, Y, validation_split=0.25))

    assert data.validation is not None
    assert (len(data.training), len(data.validation)) == (7, 3)  # floor(10 * 0.75)
    x, y = data.validation.read(np.arange(3))
    np.testing.assert_array_equal(x["a"], X[7:])
    np.testing.assert_array_equal(y, Y[7:])


def test_given_validation_data_counts_more_than_a_split() -> None:
    data = data_of(FitCall(X, Y, validation_split=0.5, validation_data=(X[:4], Y[:4])))

    assert data.validation is not None
    assert (len(data.training), len(data.validation)) == (10, 4)


def test_weights_of_samples_are_split_and_read_with_them() -> None:
    data = data_of(FitCall(X, Y, sample_weight=ALL / 10, validation_split=0.2))

    assert data.validation is not None
    np.testing.assert_allclose(data.training.read(np.array([3]))[2], [0.3])
    np.testing.assert_allclose(data.validation.read(np.array([1]))[2], [0.9])


@pytest.mark.parametrize("targets", [Y, Y.reshape(10, 1), np.eye(3)[Y], Y.astype(np.float32)])
def test_class_weight_weighs_each_sample_by_its_class(targets: Any) -> None:
    data = data_of(FitCall(X, targets, class_weight={0: 2.0, 2: 0.5}))

    np.testing.assert_array_equal(data.training.read(ALL)[2], [2, 1, 0.5, 2, 1, 0.5, 2, 1, 0.5, 2])


def test_class_weight_does_not_weigh_validation() -> None:
    data = data_of(FitCall(X, Y, class_weight={0: 2.0}, validation_split=0.5))

    assert data.validation is not None
    assert len(data.validation.read(np.arange(3))) == 2


@pytest.mark.parametrize(
    ("y", "weights", "said"),
    [(Y, ALL, "class_weight and sample_weight"), ((Y, Y), None, "one array of targets, got 2")],
)
def test_class_weight_that_is_not_clear_is_refused(y: Any, weights: Any, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        weights_of_classes(y, weights, {0: 1.0})


@pytest.mark.parametrize("share", [0.99, 1.0])
def test_split_that_leaves_nothing_is_refused(share: float) -> None:
    with pytest.raises(ProgramError, match=f"validation_split={share}"):
        data_of(FitCall(X[:5], Y[:5], validation_split=share))


@pytest.mark.parametrize(
    ("call", "batch", "validation_batch"),
    [
        (FitCall(X), 32, 32),
        (FitCall(X, batch_size=8), 8, 8),
        (FitCall(X, batch_size=8, validation_batch_size=3), 8, 3),
        (FitCall(X, steps_per_epoch=3, validation_steps=4), 4, 2),
    ],
)
def test_batches_are_those_of_keras(call: FitCall, batch: int, validation_batch: int) -> None:
    assert (call.global_batch(10), call.validation_batch(7)) == (batch, validation_batch)


def test_steps_of_a_pipeline_divide_nothing() -> None:
    call = FitCall(None, steps_per_epoch=3, validation_steps=4)

    assert (call.global_batch(0), call.validation_batch(0)) == (32, 32)


def test_epochs_begin_with_the_initial_one() -> None:
    assert FitCall(X, epochs=5, initial_epoch=2).epochs_to_train == 3
    assert FitCall(X, epochs=2, initial_epoch=2).epochs_to_train == 0
    assert FitCall(X, epochs=2, initial_epoch=3).epochs_to_train == 0


@pytest.mark.parametrize(("freq", "validated"), [(1, 1), (3, 3), ([4, 2], (2, 4))])
def test_epochs_that_are_validated(freq: Any, validated: Any) -> None:
    assert FitCall(X, validation_freq=freq).validated == validated


@pytest.mark.parametrize(("steps", "samples"), [(1, 3), (2, 6), (9, 10)])
def test_validation_takes_the_first_steps(steps: int, samples: int) -> None:
    call = FitCall(X, Y, 3, validation_data=(X, Y), validation_steps=steps)

    data = data_of(call)

    assert data.validation is not None
    assert len(data.validation) == samples
    np.testing.assert_array_equal(data.validation.read(np.array([2]))[0], X[2:3])


def test_no_steps_are_refused() -> None:
    with pytest.raises(ProgramError, match=r"validation_steps=0.: give at least 1"):
        data_of(FitCall(X, Y, validation_data=(X, Y), validation_steps=0))
    with pytest.raises(ProgramError, match=r"steps_per_epoch=0.: give at least 1"):
        FitCall(X, Y, steps_per_epoch=0).steps_of_samples(1)


def test_steps_of_larger_batches_are_fewer() -> None:
    assert FitCall(X).steps_of_samples(2) is None
    assert FitCall(X, steps_per_epoch=5).steps_of_samples(2) == 3


class _Numbered:
    """Samples that are read by number: each is its own number."""

    def __init__(self, samples: int) -> None:
        self._samples = samples

    def __len__(self) -> int:
        return self._samples

    def read(self, ids: Any) -> Any:
        return ids[:, None].astype(np.float32), ids % 3


def test_data_take_the_place_of_arrays() -> None:
    training, validation = _Numbered(10), _Numbered(4)

    data = data_of(FitCall(training, validation_data=validation))

    assert (data.training, data.validation) == (training, validation)


def test_last_part_of_data_is_held_out() -> None:
    data = data_of(FitCall(_Numbered(10), validation_split=0.25, class_weight={1: 5.0}))

    assert data.validation is not None
    assert (len(data.training), len(data.validation)) == (7, 3)
    np.testing.assert_array_equal(data.validation.read(np.array([2, 0]))[0], [[9], [7]])
    np.testing.assert_array_equal(data.training.read(np.array([4, 5]))[2], [5, 1])


def test_fingerprint_of_a_part_tells_the_part_and_the_weights() -> None:
    whole = ArrayData(X, Y)
    calls = (
        FitCall(whole, validation_split=0.25),
        FitCall(whole, validation_split=0.5),
        FitCall(whole, validation_split=0.5, class_weight={1: 2.0}),
    )

    prints = {data_of(call).training.fingerprint() for call in calls}  # type: ignore[union-attr]

    assert len(prints) == 3


@pytest.mark.parametrize("beside", [{"y": Y}, {"sample_weight": ALL}])
def test_arrays_beside_data_are_refused(beside: dict[str, Any]) -> None:
    with pytest.raises(ProgramError, match="beside a _Numbered: its read"):
        data_of(FitCall(_Numbered(10), **beside))


@pytest.mark.parametrize(
    ("given", "kind"),
    [({"x": X}, "dict"), (X, "ndarray"), ((), "tuple"), ((X, Y, ALL, ALL), "tuple")],
    ids=["dict", "array", "nothing", "too many"],
)
def test_validation_data_of_another_kind_are_refused(given: Any, kind: str) -> None:
    with pytest.raises(ProgramError, match=rf"^fit\(validation_data=\.\.\.\) got {kind}: give "):
        data_of(FitCall(X, Y, validation_data=given))


@pytest.mark.parametrize("given", [(X,), [X, Y], (X, Y, ALL)], ids=["x", "list", "weights"])
def test_validation_data_have_up_to_three_parts(given: Any) -> None:
    data = data_of(FitCall(X, Y, validation_data=given))

    assert data.validation is not None
    assert len(data.validation) == 10


@pytest.mark.parametrize("steps", [None, 1, 9])
def test_steps_of_validation_hold_for_all_kinds_of_validation_data(steps: int | None) -> None:
    calls = (
        FitCall(X, Y, 2, validation_split=0.5, validation_steps=steps),
        FitCall(_Numbered(10), None, 2, validation_split=0.5, validation_steps=steps),
        FitCall(X, Y, 2, validation_data=_Numbered(5), validation_steps=steps),
    )

    sizes = [len(found) for call in calls if (found := data_of(call).validation) is not None]

    assert sizes == [2 if steps == 1 else 5] * 3


def test_split_of_data_that_leaves_nothing_is_refused_with_both_numbers() -> None:
    with pytest.raises(ProgramError, match="leaves 0 of 10 samples for training and 10 for valid"):
        data_of(FitCall(_Numbered(10), validation_split=0.96))


def test_share_of_less_than_a_sample_holds_one_out() -> None:
    data = data_of(FitCall(_Numbered(10), validation_split=0.01))

    assert data.validation is not None
    assert (len(data.training), len(data.validation)) == (9, 1)
