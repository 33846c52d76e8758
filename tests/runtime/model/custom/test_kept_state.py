"""State between the turns of a step: the turn in hand, and the numbers of the logs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras")

import keras

from holdfast.runtime.model.custom_replica import KeptState, replica_variables, seed_states
from holdfast.runtime.model.step_logs import Number, StepLogs
from holdfast.runtime.model.step_plan import StepPlan

pytestmark = pytest.mark.tensorflow

NUMBERS = (Number("critic", (2,)), Number("maker", ()))


def kept(*, turns: int = 1, numbers: tuple[Number, ...] = ()) -> KeptState:
    """Return the state of a step with an update in each turn, and a number in each."""
    logs = StepLogs(None, numbers, all_results=False)
    of_turns = tuple(range(turns))
    return KeptState(StepPlan(of_turns, ((),) * turns, (), (), (), of_turns, logs))


def names_of(state: KeptState) -> list[str]:
    return [variable.name for variable in state.variables]


def test_checkpoint_has_only_what_a_step_needs_between_turns() -> None:
    assert names_of(kept()) == []
    assert names_of(kept(turns=2)) == ["turn"]
    assert names_of(kept(numbers=NUMBERS[1:])) == ["logs"]
    assert names_of(kept(turns=2, numbers=NUMBERS)) == ["turn", "logs"]


@pytest.mark.parametrize(("turns", "found"), [(1, 0), (2, 1)])
def test_turn_is_kept_where_there_are_several(turns: int, found: int) -> None:
    state = kept(turns=turns)

    state.turn = 1

    assert state.turn == found


def test_numbers_are_kept_when_their_turn_comes() -> None:
    state = kept(turns=2, numbers=NUMBERS)

    state.note_numbers(0, np.array([1.0, 2.0, 9.0], np.float32))
    after_first = state.numbers.tolist()
    state.note_numbers(1, np.array([7.0, 7.0, 3.0], np.float32))

    assert after_first == [1.0, 2.0, 0.0]
    assert state.numbers.tolist() == [1.0, 2.0, 3.0]


def test_step_without_numbers_has_none_to_keep() -> None:
    state = kept(turns=2)

    state.note_numbers(0, np.zeros(0, np.float32))

    assert state.numbers.tolist() == []


def model_with_noise() -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2), layers.BatchNormalization(), layers.Dropout(0.5)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def test_seeds_of_a_microbatch_are_no_part_of_the_state() -> None:
    model = model_with_noise()
    (seed,) = seed_states(model)

    variables = replica_variables(model, [], kept())

    assert id(seed) not in {id(variable) for variable in variables.values()}
    assert {id(v) for v in model.variables} - {id(seed)} <= {id(v) for v in variables.values()}


def test_weights_that_only_an_optimizer_knows_belong_to_the_state_once() -> None:
    """Such as those of a critic that the model holds in a plain list."""
    model, stranger = model_with_noise(), keras.Variable([1.0], name="stranger")
    other = keras.optimizers.SGD(0.1, momentum=0.9)
    for optimizer, variables in ((model.optimizer, model.trainable_variables), (other, [stranger])):
        optimizer.build(variables)

    found = replica_variables(model, [other, model.optimizer, other], kept(turns=2))

    ids = [id(variable) for variable in found.values()]
    assert len(set(ids)) == len(ids)
    assert ids.count(id(stranger)) == 1
    assert all(ids.count(id(v)) == 1 for o in (model.optimizer, other) for v in o.variables)
    assert found["optimizer/turn"].name == "turn"
