"""Rules of own steps that models seldom come to: test_custom_refusals has the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model import model_rules

STEP = "Own.train_step"


def variable(path: str = "own/w", *, dtype: str = "float32", trainable: bool = True) -> Any:
    return SimpleNamespace(path=path, dtype=dtype, trainable=trainable)


def call_of(*graded: Any, without_gradient: tuple[Any, ...] = ()) -> Any:
    """Return an update of some variables."""
    return SimpleNamespace(variables=graded, everything=(*graded, *without_gradient))


class Own:
    """A model, as far as a rule looks at it."""

    def __init__(self, *, run_eagerly: bool) -> None:
        self.run_eagerly = run_eagerly


def test_step_that_fails_under_keras_too_keeps_its_own_error() -> None:
    model_rules.check_traceable(Own(run_eagerly=False), "train_step", TypeError("of the script"))


def test_trained_variable_of_16_bits_is_named_wherever_it_stands() -> None:
    narrow = variable("own/narrow", dtype="bfloat16")

    with pytest.raises(ProgramError, match="updates 'own/narrow' of type bfloat16"):
        model_rules.check_updates(
            [(call_of(variable()), 3), (call_of(variable(), narrow), 9)], STEP
        )


@pytest.mark.parametrize(
    ("trainable", "said"),
    [(False, "no attribute 'handle'"), (True, "no attribute 'shape'")],
    ids=["no weight", "another error"],
)
def test_error_that_has_another_cause_is_left_alone(*, trainable: bool, said: str) -> None:
    assigned = [(variable(trainable=trainable), 3)]

    model_rules.check_gradients_of(assigned, STEP, AttributeError(said))


def test_validation_that_changes_a_variable_is_refused_by_the_first_one() -> None:
    model_rules.check_evaluation([], "Own.test_step")

    with pytest.raises(ProgramError, match=r"Own.test_step changes 'own/a', but validation must"):
        model_rules.check_evaluation([variable("own/a"), variable("own/b")], "Own.test_step")
