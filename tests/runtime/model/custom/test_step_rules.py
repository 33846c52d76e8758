"""What the rules of own steps refuse, in which words, and what they let pass."""

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


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TypeError("no float\nand more"), "in a graph: TypeError: no float; use operations"),
        (ValueError("  \n"), "in a graph: ValueError: ; use operations"),
    ],
    ids=["first line", "no message"],
)
def test_eager_step_that_cannot_be_traced_is_told_why(error: Exception, told: str) -> None:
    with pytest.raises(ProgramError) as caught:
        model_rules.check_traceable(Own(run_eagerly=True), "test_step", error)

    assert str(caught.value).startswith("Own.test_step runs in Keras only with run_eagerly=True")
    assert told in str(caught.value)
    assert caught.value.__cause__ is error


def test_step_that_fails_under_keras_too_keeps_its_own_error() -> None:
    model_rules.check_traceable(Own(run_eagerly=False), "train_step", TypeError("of the script"))


@pytest.mark.parametrize("calls", [[], [(call_of(), 3)]], ids=["no call", "no gradient"])
def test_step_that_trains_nothing_is_refused(calls: list[Any]) -> None:
    with pytest.raises(ProgramError, match=r"Own.train_step hands no gradients to an optimizer"):
        model_rules.check_updates(calls, STEP)


def test_one_update_with_gradients_among_several_is_enough() -> None:
    model_rules.check_updates([(call_of(), 3), (call_of(variable()), 9)], STEP)


def test_trained_variable_of_16_bits_is_named_wherever_it_stands() -> None:
    narrow = variable("own/narrow", dtype="bfloat16")

    with pytest.raises(ProgramError, match="updates 'own/narrow' of type bfloat16"):
        model_rules.check_updates(
            [(call_of(variable()), 3), (call_of(variable(), narrow), 9)], STEP
        )


def test_variable_of_nobody_is_refused_and_the_models_own_is_not() -> None:
    model_rules.check_assigned(variable(), STEP, is_known=True)

    with pytest.raises(ProgramError, match="changes 'own/w', which is neither a variable nor"):
        model_rules.check_assigned(variable(), STEP, is_known=False)


def captured(updated: Any, assigned: dict[int, Any]) -> Any:
    """Return a step with one update, at position 10."""
    return SimpleNamespace(calls=[(updated, 10)], assigned=assigned)


@pytest.mark.parametrize("is_graded", [True, False])
def test_weight_that_is_assigned_before_its_update_is_named(*, is_graded: bool) -> None:
    early = variable("own/early")
    update = call_of(early) if is_graded else call_of(variable(), without_gradient=(early,))

    with pytest.raises(ProgramError, match="assigns 'own/early' before an optimizer updates it"):
        model_rules.check_order(captured(update, {id(early): (early, 9)}), STEP)


@pytest.mark.parametrize("position", [10, 11])
def test_weight_may_be_assigned_after_its_update(position: int) -> None:
    late, other = variable(), variable("own/other")

    model_rules.check_order(captured(call_of(late), {id(late): (late, position)}), STEP)
    model_rules.check_order(captured(call_of(late), {id(other): (other, 1)}), STEP)


def test_tape_without_a_gradient_of_an_assigned_weight_is_explained() -> None:
    error = AttributeError("'SymbolicTensor' object has no attribute 'handle'")
    assigned = [(variable("own/level", trainable=False), 3), (variable("own/kernel"), 4)]

    with pytest.raises(ProgramError, match="assigns 'own/kernel' before") as caught:
        model_rules.check_gradients_of(assigned, STEP, error)

    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    ("trainable", "said"),
    [(False, "no attribute 'handle'"), (True, "no attribute 'shape'")],
    ids=["no weight", "another error"],
)
def test_error_that_has_another_cause_is_left_alone(*, trainable: bool, said: str) -> None:
    assigned = [(variable(trainable=trainable), 3)]

    model_rules.check_gradients_of(assigned, STEP, AttributeError(said))


@pytest.mark.parametrize(
    ("path", "advice"),
    [
        ("own/batch_normalization/moving_mean", model_rules.OF_STATISTICS),
        ("own/codebook/counts", model_rules.OF_STATE),
    ],
    ids=["statistics", "state"],
)
def test_advice_fits_the_variable(path: str, advice: str) -> None:
    assert model_rules.advice_for(variable(path)) == advice


def test_value_of_two_turns_is_refused_with_what_to_do() -> None:
    with pytest.raises(ProgramError, match=f"^'loss' of {STEP} is .*: {model_rules.OF_VALUES}$"):
        model_rules.check_turn(None, "'loss'", STEP)
    with pytest.raises(ProgramError, match=f": {model_rules.OF_STATE}$"):
        model_rules.check_turn(None, "own/level", STEP, model_rules.OF_STATE)


@pytest.mark.parametrize("turn", [0, 1])
def test_value_of_one_turn_passes(turn: int) -> None:
    model_rules.check_turn(turn, "'loss'", STEP)


def test_value_must_be_known_before_the_last_update() -> None:
    assert model_rules.checked_last(0, 1, "'loss'", STEP) == 0
    assert model_rules.checked_last(1, 1, "'loss'", STEP) == 1
    with pytest.raises(ProgramError, match=f"'loss' of {STEP} is computed from the microbatch aft"):
        model_rules.checked_last(2, 1, "'loss'", STEP)


def test_validation_that_changes_a_variable_is_refused_by_the_first_one() -> None:
    model_rules.check_evaluation([], "Own.test_step")

    with pytest.raises(ProgramError, match=r"Own.test_step changes 'own/a', but validation must"):
        model_rules.check_evaluation([variable("own/a"), variable("own/b")], "Own.test_step")


def test_mixing_of_samples_is_told_with_both_norms() -> None:
    model_rules.check_mixing(SimpleNamespace(mixes_samples=False), STEP)

    with pytest.raises(ProgramError) as caught:
        model_rules.check_mixing(SimpleNamespace(mixes_samples=True, whole=2.0, parts=0.125), STEP)

    assert "has the norm 2 for some samples together, but 0.125, or" in str(caught.value)
    assert "--accept-batch-mixing" in str(caught.value)
