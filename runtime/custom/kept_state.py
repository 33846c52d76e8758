"""State of a replica beside weights and optimizers, and all of its variables by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import numpy as np

from holdfast.recovery.partial import FloatVector
from holdfast.runtime.custom.step_plan import StepPlan
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.named_variables import named_variables


class KeptState:
    """The turn in hand, and the numbers of the last step's logs, if a step has them."""

    def __init__(self, plan: StepPlan) -> None:
        self._plan = plan
        self._floats = sum(number.size for number in plan.logs.numbers)
        self._turn = _variable((), "int64", "turn")
        self._numbers = _variable((self._floats,), "float32", "logs")

    @property
    def variables(self) -> list[Any]:
        """Variables that belong to the state; a step that needs none has none."""
        found = [self._turn] if self._plan.last_turn else []
        return found + ([self._numbers] if self._floats else [])

    @property
    def turn(self) -> int:
        """The turn that comes next, 0 between two steps."""
        return int(np.asarray(self._turn.value)) if self._plan.last_turn else 0

    @turn.setter
    def turn(self, turn: int) -> None:
        if self._plan.last_turn:
            self._turn.value.assign(turn)

    @property
    def numbers(self) -> FloatVector:
        """The numbers of the last step."""
        found: FloatVector = np.asarray(self._numbers.value)
        return found

    def note_numbers(self, turn: int, numbers: FloatVector) -> None:
        """Keep the numbers that belong to a turn."""
        if not self._floats:
            return
        sizes = [number.size for number in self._plan.logs.numbers]
        turns = np.repeat(np.array(self._plan.number_turns), sizes)
        self._numbers.value.assign(np.where(turns == turn, numbers, self.numbers))


def seed_states(model: Any) -> tuple[Any, ...]:
    """Return the states of seed generators that a step may draw from."""
    return tuple(v for v in model.non_trainable_variables if model_rules.is_generator_state(v))


def replica_variables(model: Any, optimizers: Iterable[Any], kept: KeptState) -> dict[str, Any]:
    """Return all variables that a state holds, by name.

    Variables that the step trains, but that the model does not own, belong to their optimizer.
    """
    kinds = [*([] if model.optimizer is None else [model.optimizer]), *optimizers]
    unique = list({id(optimizer): optimizer for optimizer in kinds}.values())
    weights = [
        *model.trainable_variables,
        *(v for v in model.non_trainable_variables if not model_rules.is_generator_state(v)),
    ]
    known = {id(v) for v in weights}
    trained = (v for o in unique if o.built for v in getattr(o, "_trainable_variables", ()))
    for variable in trained:
        if id(variable) not in known:
            known.add(id(variable))
            weights.append(variable)
    of_optimizers = [v for optimizer in unique for v in optimizer.variables]
    return named_variables(weights, [*of_optimizers, *kept.variables])


def _variable(shape: tuple[int, ...], dtype: str, name: str) -> Any:
    return keras.Variable(np.zeros(shape, dtype), dtype=dtype, trainable=False, name=name)
