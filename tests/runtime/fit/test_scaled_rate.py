"""An update sees the scaled rate; everyone else sees that of the script."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.options.job_options import RateScale

pytestmark = pytest.mark.tensorflow

SCALE = RateScale("linear", 5, 4)
FACTORS = [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]


def moved(optimizer: Any, updates: int) -> list[float]:
    """Return how far each update with a gradient of 1 has moved a variable."""
    import keras
    import tensorflow as tf

    variable = keras.Variable([0.0])
    optimizer.build([variable])
    places = [0.0]
    apply = tf.function(lambda: optimizer.apply([tf.ones(1)], [variable]))
    for _ in range(updates):
        apply()
        places.append(float(np.asarray(variable)[0]))
    return [before - after for before, after in itertools.pairwise(places)]


def test_rate_of_a_variable_is_scaled_in_updates_only() -> None:
    import keras

    from holdfast.runtime.fit.keras_fit import ScaledRate

    optimizer = keras.optimizers.SGD(0.5)
    scaled = ScaledRate(optimizer, SCALE)

    assert moved(optimizer, 6) == pytest.approx([0.5 * factor for factor in FACTORS])
    assert float(optimizer.learning_rate) == 0.5
    optimizer.learning_rate = 0.25  # as a callback does
    assert float(optimizer.learning_rate) == 0.25
    scaled.take_off()
    assert "apply" not in vars(optimizer)


def test_schedule_goes_on_beneath_the_scale() -> None:
    import keras

    from holdfast.runtime.fit.keras_fit import ScaledRate

    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([2], [1.0, 0.1])
    optimizer = keras.optimizers.SGD(schedule)
    ScaledRate(optimizer, SCALE)

    rates = [1.0, 1.0, 1.0, 0.1, 0.1, 0.1]
    expected = [rate * factor for rate, factor in zip(rates, FACTORS, strict=True)]
    assert moved(optimizer, 6) == pytest.approx(expected, rel=1e-5)


def test_optimizer_of_mixed_precision_is_scaled_inside() -> None:
    import keras

    from holdfast.runtime.fit.keras_fit import ScaledRate

    inner = keras.optimizers.SGD(0.5)
    ScaledRate(keras.optimizers.LossScaleOptimizer(inner), SCALE)

    assert moved(inner, 2) == pytest.approx([0.5, 1.0])
