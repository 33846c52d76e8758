"""The facts of a step: alike in two processes that build the same, and another for any change."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_harness import replica_of

from holdfast.runtime.model.step_facts import GraphFacts, StepFacts, step_facts

pytestmark = pytest.mark.tensorflow

X, Y = np.ones((8, 4), np.float32), np.ones((8, 1), np.float32)
TABLE = np.arange(400, dtype=np.float32).reshape(8, 50)


def facts(
    factor: Any = 2.0,
    *,
    momentum: float = 0.9,
    rate: float = 0.2,
    unroll: bool = False,
    add: float = 0.0,
) -> StepFacts:
    keras.backend.clear_session()
    model = keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dropout(rate),
            keras.layers.Reshape((2, 2)),
            keras.layers.SimpleRNN(3, unroll=unroll, name="memory"),
            keras.layers.Dense(1),
        ]
    )
    table = tf.constant(TABLE + add)
    model.compile(
        keras.optimizers.SGD(0.1, momentum),
        lambda t, p: factor * keras.ops.mean((t - p) ** 2, -1) + keras.ops.sum(table),
    )
    return replica_of(model, X, Y).facts()


_facts_once = functools.cache(facts)


@pytest.fixture
def before() -> StepFacts:
    """The facts of a step without changes."""
    return _facts_once()


def test_names_of_functions_and_seeds_of_dropout_do_not_count(before: StepFacts) -> None:
    """TensorFlow counts its functions."""
    keras.utils.set_random_seed(2)
    one, two = before, facts()

    assert one.digest == two.digest
    assert (one.graphs, one.settings()) == (two.graphs, two.settings())


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"factor": 3.0}, "the loss"),
        ({"add": 1.0}, "the loss"),
        ({"momentum": 0.8}, "the optimizer"),
        ({"rate": 0.3}, "layer 'dropout'"),
    ],
)
def test_a_constant_tells_its_part(before: StepFacts, changes: dict[str, Any], part: str) -> None:
    now = facts(**changes)

    assert now.digest != before.digest
    assert now.graphs.operations == before.graphs.operations
    names = before.graphs.parts
    assert part in [name for name in names if names[name] != now.graphs.parts[name]]


def test_a_setting_has_both_values_and_other_operations_are_seen(before: StepFacts) -> None:
    now = facts(unroll=True)

    told = [found.settings()["unroll of SimpleRNN 'memory'"] for found in (before, now)]
    assert told == ["False", "True"]
    assert now.graphs.operations != before.graphs.operations
    assert now.graphs.whole != before.graphs.whole


def test_a_variable_that_the_step_reads_is_compared_by_its_value() -> None:
    one, two = (facts(tf.Variable(value, name="weight")) for value in (1.0, 2.0))

    assert one.graphs == two.graphs
    assert one.read == {"the variable 'weight' that the step reads": "1.0"}
    assert one.digest != two.digest


class Falling(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule of a user's own, without a configuration."""

    def __call__(self, step: Any) -> Any:
        return 0.1 / (1.0 + keras.ops.cast(step, "float32"))


class Pull(keras.regularizers.Regularizer):
    """A regularizer of a user's own, without a configuration."""

    def __call__(self, x: Any) -> Any:
        return 0.01 * keras.ops.sum(x * x)


def test_settings_are_in_words_whatever_an_object_tells_of_itself() -> None:
    keras.backend.clear_session()
    layer = keras.layers.Dense(1, kernel_regularizer=Pull(), name="last")
    model = keras.Sequential([keras.Input((4,)), layer], name="own")
    model.compile(keras.optimizers.SGD(Falling()), "mse")

    settings = replica_of(model, X, Y).facts().settings()

    assert settings["learning rate of SGD 'sgd'"] == "Falling()"
    assert settings["kernel regularizer of Dense 'last'"] == "Pull()"
    assert settings["loss of Sequential 'own'"] == "'mse'"


def test_variables_of_one_name_are_told_in_the_order_in_which_the_step_reads_them() -> None:
    """TensorFlow lists them by their places in memory, which may differ in another process."""
    variables = [tf.Variable(float(number)) for number in range(12)]
    step = tf.function(lambda: tf.add_n([variable.read_value() for variable in variables]))

    found = step_facts(keras.Sequential(), GraphFacts(), [step.get_concrete_function()])

    assert list(found.read.values()) == [str(float(number)) for number in range(12)]
