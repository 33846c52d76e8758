"""What a script's step does is caught: its updates, which can be made with other gradients, and its
logs, which are results of metrics or numbers that belong to the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.captured_step import (
    OptimizerCall,
    StepLogs,
    caught_calls,
    noted_results,
    scalars,
)

pytestmark = pytest.mark.tensorflow

RATE = 0.5


def weights() -> list[Any]:
    return [keras.Variable(1.0), keras.Variable(2.0)]


def values_of(variables: list[Any]) -> list[float]:
    return [float(variable.value) for variable in variables]


def built(variables: list[Any]) -> Any:
    optimizer = keras.optimizers.SGD(RATE)
    optimizer.build(variables)
    return optimizer


def gradients() -> list[Any]:
    return [tensorflow.constant(10.0), tensorflow.constant(20.0)]


Ask = Callable[[Any, list[Any], list[Any]], Any]

WAYS: dict[str, Ask] = {
    "apply": lambda o, g, v: o.apply(g, v),
    "apply by names": lambda o, g, v: o.apply(grads=g, trainable_variables=v),
    "apply without variables": lambda o, g, v: o.apply(g),
    "apply_gradients": lambda o, g, v: o.apply_gradients(zip(g, v, strict=True)),
    "apply_gradients by name": lambda o, g, v: o.apply_gradients(
        grads_and_vars=list(zip(g, v, strict=True))
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_update_is_caught_and_changes_nothing_until_it_is_made(way: str) -> None:
    variables, given = weights(), gradients()
    optimizer = built(variables)
    caught: list[OptimizerCall] = []

    with caught_calls(caught.append):
        iterations = WAYS[way](optimizer, given, variables)
        before = values_of(variables)
    (call,) = caught
    call.make([tensorflow.constant(1.0), tensorflow.constant(-1.0)])

    assert before == [1.0, 2.0]
    assert iterations is optimizer.iterations
    assert [id(g) for g in call.gradients] == [id(g) for g in given]
    assert [id(v) for v in call.variables] == [id(v) for v in variables]
    assert values_of(variables) == [1.0 - RATE, 2.0 + RATE]
    assert int(np.asarray(optimizer.iterations)) == 1


def test_optimizer_of_the_script_with_an_apply_of_its_own_is_caught_before_it() -> None:
    class Flipped(keras.optimizers.SGD):  # type: ignore[misc,name-defined]
        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            super().apply([-gradient for gradient in grads], trainable_variables)

    variables = weights()
    optimizer = Flipped(RATE)
    caught: list[OptimizerCall] = []

    with caught_calls(caught.append):
        optimizer.apply(gradients(), variables)
    caught[0].make(gradients())

    assert len(caught) == 1
    assert values_of(variables) == [1.0 + 10 * RATE, 2.0 + 20 * RATE]


STEP = "Tracked.train_step"
NONE = np.zeros(0)


class Range(keras.metrics.Metric):  # type: ignore[misc,name-defined]
    """A metric whose result has two values."""

    def __init__(self) -> None:
        super().__init__(name="range")
        self.top = self.add_variable((), "zeros", name="top")

    def update_state(self, value: Any) -> None:
        self.top.assign(value)

    def result(self) -> Any:
        return {"low": -self.top, "high": self.top + 0.0}


class Tracked(keras.Model):  # type: ignore[misc,name-defined]
    """A model with two metrics: one of one value, and one of two."""

    def __init__(self) -> None:
        super().__init__()
        self.error = keras.metrics.Mean(name="error")
        self.range = Range()


def tensor(value: Any) -> Any:
    return keras.ops.convert_to_tensor(value)


def logged(model: Any, **numbers: Any) -> tuple[StepLogs, dict[str, Any]]:
    """Return what the logs of a step consist of, and the logs: the metrics and some numbers."""
    with noted_results(model.metrics) as noted:
        logs = {"error": model.error.result(), **numbers, "range": model.range.result()}
    return StepLogs.of(model, logs, noted, STEP), logs


@pytest.mark.parametrize(
    ("logs", "said"),
    [(None, "nothing"), ("tensor", "a tensor"), ((1.0,), "an object of type tuple")],
    ids=["None", "tensor", "tuple"],
)
def test_step_that_returns_no_dictionary_is_refused(logs: Any, said: str) -> None:
    returned = tensor(1.0) if logs == "tensor" else logs

    with pytest.raises(ProgramError, match=f"{STEP} returns {said}, not its logs: return a dict"):
        StepLogs.of(Tracked(), returned, {}, STEP)


def test_logs_with_all_metrics_alone_are_the_metrics_as_keras_shows_them() -> None:
    """Keras drops the values of such logs, even of a number that has the name of a metric."""
    model = Tracked()
    logs = {"low": tensor(1.0), "high": tensor(2.0), "error": tensor(3.0)}
    found = StepLogs.of(model, logs, {}, STEP)
    model.error.update_state(7.0)
    model.range.update_state(5.0)

    assert found.numbers == ()
    assert found.numbers_in(logs) == []
    assert found.shown(NONE) == {"error": 7.0, "low": -5.0, "high": 5.0}


def test_logs_are_shown_from_the_variables_of_metrics_and_the_floats_of_numbers() -> None:
    model = Tracked()
    found, _ = logged(model, norm=tensor([[1.0], [1.0]]), plain=tensor(1.0))
    model.error.update_state(2.0)
    model.range.update_state(5.0)

    shown = found.shown(np.array([0.5, 0.25, 9.0]))

    assert list(shown.items()) == [
        ("error", 2.0),
        ("norm/0", 0.5),
        ("norm/1", 0.25),
        ("plain", 9.0),
        ("low", -5.0),
        ("high", 5.0),
    ]


def test_values_of_several_numbers_are_numbered() -> None:
    logs = {"a": 1, "inner": {"b": np.array([[2.0, 3.0]]), "c": {"d": tensor(4.0)}}, "e": [5.0]}

    assert list(scalars(logs)) == [
        ("a", 1.0),
        ("b/0", 2.0),
        ("b/1", 3.0),
        ("d", 4.0),
        ("e/0", 5.0),
    ]
