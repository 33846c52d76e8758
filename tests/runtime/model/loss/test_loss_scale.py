"""The scale of a loss: what an optimizer multiplies by, and which overflows it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

from holdfast.runtime.model.loss import LEAST_SCALE, LossScale

pytestmark = pytest.mark.tensorflow

FINITE = np.array([1.0, 0.0], np.float32)


def dynamic(scale: float) -> Any:
    """Return an optimizer that skips steps whose gradients overflow."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(), initial_scale=scale)
    optimizer.build([keras.Variable([0.0])])
    return optimizer


def test_factor_is_what_the_optimizer_multiplies_a_loss_by() -> None:
    fixed = keras.optimizers.SGD(loss_scale_factor=8.0)

    assert float(LossScale(keras.optimizers.SGD()).factor()) == 1.0
    assert float(LossScale(fixed).factor()) == 8.0
    assert float(LossScale(dynamic(32.0)).factor()) == 32.0


def test_only_a_dynamic_scale_skips_steps() -> None:
    assert not LossScale(keras.optimizers.SGD(loss_scale_factor=8.0)).is_dynamic
    assert not LossScale(keras.optimizers.SGD(loss_scale_factor=8.0)).takes_overflow(FINITE)
    assert LossScale(dynamic(32.0)).is_dynamic
    assert LossScale(dynamic(32.0)).takes_overflow(FINITE)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_overflow_outside_of_the_gradients_has_another_cause(value: float) -> None:
    others = np.array([1.0, value], np.float32)

    assert not LossScale(dynamic(32.0)).takes_overflow(others)


@pytest.mark.parametrize(("scale", "is_taken"), [(LEAST_SCALE, True), (LEAST_SCALE / 2, False)])
def test_scale_that_was_halved_very_often_is_not_the_cause(scale: float, *, is_taken: bool) -> None:
    assert LossScale(dynamic(scale)).takes_overflow(FINITE) is is_taken
