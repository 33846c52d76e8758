"""Updates that a script asks optimizers for are caught, and can be made with other gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

import keras
import tensorflow

from holdfast.runtime.model.captured_step import OptimizerCall, caught_calls

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


def test_variable_without_a_gradient_is_known_but_not_updated() -> None:
    first, second = variables = weights()
    caught: list[OptimizerCall] = []

    with caught_calls(caught.append):
        built(variables).apply([None, tensorflow.constant(1.0)], variables)

    (call,) = caught
    assert [id(v) for v in call.variables] == [id(second)]
    assert [id(v) for v in call.everything] == [id(first), id(second)]
    assert len(call.gradients) == 1


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


def test_handler_that_fails_leaves_optimizers_as_they_were() -> None:
    variables = weights()
    optimizer = built(variables)
    before = keras.optimizers.Optimizer.apply

    def fail(call: OptimizerCall) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), caught_calls(fail):
        optimizer.apply(gradients(), variables)
    optimizer.apply(gradients(), variables)

    assert keras.optimizers.Optimizer.apply is before
    assert values_of(variables) == [1.0 - 10 * RATE, 2.0 - 20 * RATE]
