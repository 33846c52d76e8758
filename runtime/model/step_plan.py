"""What a script's step does, learned from one tracing: turns, and the part each variable plays.

A script's step may update the discriminator, and then compute gradients of the generator with the
updated discriminator.  The sum over all microbatches comes in at each update.  So the second
gradients can be computed only after the first update is applied: they are of the next *turn*.
Updates whose gradients need no earlier update share a turn.

A value that the step has read from a variable is a *read*: the variable, and the position of the
read in the traced graph.  An update changes variables at its position.  The reads of a value, and
the data that it depends on, are found in the graph, without importing TensorFlow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from holdfast.runtime.model import model_rules
from holdfast.runtime.model.captured_step import CapturedStep, StepLogs
from holdfast.runtime.model.kinds import StateKind

Read: TypeAlias = tuple[int, int]
"""The number of a variable, and the position at which it was read."""


@dataclass(frozen=True, slots=True)
class Update:
    """One update of a step: what its gradients have read, and what it changes."""

    position: int
    changes: frozenset[int]
    reads: tuple[Read, ...]


def turns_of(updates: Sequence[Update]) -> tuple[int, ...]:
    """Return the turn of each update, counted from 0; updates keep their order."""
    turns: list[int] = []
    for i, update in enumerate(updates):
        earliest = _earliest(update.reads, updates[:i], turns)
        turns.append(max([earliest, *turns]))
    return tuple(turns)


def turn_of(reads: Iterable[Read], updates: Sequence[Update], turns: Sequence[int]) -> int | None:
    """Return the turn in which a value with these reads can be computed, None if in none.

    There is none if the value needs a variable both before and after an update of the step.
    """
    found = tuple(reads)
    turn = _earliest(found, updates, turns)
    return turn if is_consistent(found, updates, turns, turn) else None


def is_consistent(
    reads: Iterable[Read], updates: Sequence[Update], turns: Sequence[int], turn: int
) -> bool:
    """Return whether all reads see in ``turn`` what they saw in the script's step."""
    return all(
        (update.position <= position) == (turns[i] < turn)
        for variable, position in reads
        for i, update in enumerate(updates)
        if variable in update.changes
    )


def _earliest(reads: Iterable[Read], updates: Sequence[Update], turns: Sequence[int]) -> int:
    return max(
        (
            turns[i] + 1
            for variable, position in reads
            for i, update in enumerate(updates)
            if variable in update.changes and update.position <= position
        ),
        default=0,
    )


_DATA = 1
"""The bit of everything that differs between microbatches."""


class GraphReads:
    """Dependencies of all values in a graph, as it stands when this is made.

    ``variables`` are numbered by the caller.  A mask has a bit for the data, and one for each
    operation that reads a variable.
    """

    def __init__(self, graph: Any, variables: Mapping[int, Any]) -> None:
        handles = {id(v.value.handle): number for number, v in variables.items()}
        captured = {id(inner.op): handles.get(id(outer)) for outer, inner in graph.captures}
        self._reads: list[Read] = []
        self._masks: dict[int, int] = {}
        self._handles: dict[int, int] = {}
        for position, operation in enumerate(graph.get_operations()):
            if id(operation) in captured:
                number = captured[id(operation)]
                if number is not None:
                    self._handles[id(operation)] = number
                self._masks[id(operation)] = 0
            elif operation.type == "Placeholder":
                self._masks[id(operation)] = _DATA
            else:
                self._masks[id(operation)] = self._mask_at(operation, position)

    def depends_on_data(self, tensor: Any) -> bool:
        """Return whether the value may differ between microbatches."""
        return bool(self._mask(tensor) & _DATA)

    def reads(self, *tensors: Any) -> tuple[Read, ...]:
        """Return the reads that the values depend on."""
        mask = 0
        for tensor in tensors:
            mask |= self._mask(tensor)
        mask >>= 1
        return tuple(read for i, read in enumerate(self._reads) if mask >> i & 1)

    def _mask_at(self, operation: Any, position: int) -> int:
        mask = 0
        for tensor in operation.inputs:
            number = self._handles.get(id(tensor.op))
            if number is None:
                mask |= self._masks.get(id(tensor.op), 0)
            else:
                mask |= 2 << len(self._reads)
                self._reads.append((number, position))
        return mask

    def _mask(self, tensor: Any) -> int:
        return self._masks.get(id(tensor.op), 0) if hasattr(tensor, "op") else 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The parts of a training step.

    Indexes of ``turns`` are those of the updates, in the order of the script.
    """

    turns: tuple[int, ...]
    graded: tuple[tuple[Any, ...], ...]
    """For each update the variables that have gradients."""
    moving: tuple[tuple[Any, int], ...]
    """State that the step makes of the samples, and the turn in which it does."""
    following: tuple[Any, ...]
    """Variables that the step computes from other variables alone, such as averaged weights."""
    metric_turns: tuple[int, ...]
    """For each metric variable the turn in which it is measured."""
    number_turns: tuple[int, ...]
    logs: StepLogs

    def calls_of(self, turn: int) -> list[int]:
        """Return the indexes of a turn's updates."""
        return [i for i, of_update in enumerate(self.turns) if of_update == turn]

    def variables_of(self, turn: int) -> list[Any]:
        """Return the variables whose tensors stand in the contribution of a turn, in order."""
        graded = [v for i in self.calls_of(turn) for v in self.graded[i]]
        return graded + [v for v, of_state in self.moving if of_state == turn]

    def signature(self) -> object:
        """Return what must be the same in all tracings, to be compared."""
        return (
            self.turns,
            [[v.path for v in variables] for variables in self.graded],
            [(v.path, turn) for v, turn in self.moving],
            [v.path for v in self.following],
            self.metric_turns,
            self.number_turns,
            [entry.name for entry in self.logs.entries],
        )


class Planner:
    """Numbers all variables of a step that was captured in ``graph``: what was computed from which.

    ``states`` tells what becomes of state over the parts of a batch, as far as that is known.
    """

    def __init__(self, captured: CapturedStep, graph: Any, states: Mapping[str, StateKind]) -> None:
        self._step = step = captured.step
        self._captured = captured
        self._states = states
        calls = [call for call, _ in captured.calls]
        given = [v for call in calls for v in call.everything]
        optimizers = [v for call in calls for v in call.optimizer.variables]
        assigned = [variable for variable, _ in captured.assigned.values()]
        everything = [*step.model.variables, *given, *optimizers, *assigned]
        self._numbers: dict[int, int] = {}
        for variable in everything:
            self._numbers.setdefault(id(variable), len(self._numbers))
        by_number = {self._numbers[id(v)]: v for v in everything}
        self._reads = GraphReads(graph, by_number)
        self._updates = [
            Update(position, self._changes(call), self._reads.reads(*call.gradients))
            for call, position in captured.calls
        ]
        self._turns = turns_of(self._updates)

    def plan(self) -> StepPlan:
        """Return the plan of the step.

        Raises:
            ProgramError: the step does what microbatches on several workers cannot do.
        """
        captured, name = self._captured, self._step.name
        model_rules.check_updates(captured.calls, name)
        for i, update in enumerate(self._updates):
            is_whole = is_consistent(update.reads, self._updates, self._turns, self._turns[i])
            what = f"the gradient for {captured.calls[i][0].optimizer.name!r}"
            model_rules.check_turn(0 if is_whole else None, 0, what, name)
        model_rules.check_order(captured, name)
        moving, following = self._state()
        logs = StepLogs.of(self._step.model, captured.logs, captured.results, name)
        return StepPlan(
            self._turns,
            tuple(call.variables for call, _ in captured.calls),
            moving,
            following,
            tuple(self._turn_of(captured.value(v), v.path) for v in captured.metrics),
            tuple(
                self._turn_of(tensor, repr(number.name))
                for number, tensor in zip(logs.numbers, logs.numbers_in(captured.logs), strict=True)
            ),
            logs,
        )

    def _state(self) -> tuple[tuple[tuple[Any, int], ...], tuple[Any, ...]]:
        captured, step = self._captured, self._step
        known = {id(v) for v in step.model.variables}
        moving, following = [], []
        for variable in captured.state:
            model_rules.check_assigned(variable, step.name, is_known=id(variable) in known)
            value = captured.value(variable)
            kind = self._states.get(variable.path, StateKind.SAME)
            # The number of samples is a constant of the graph, and no data.
            if self._reads.depends_on_data(value) or kind is not StateKind.SAME:
                model_rules.check_state_change(variable)
                is_statistic = "moving_" in variable.path
                advice = model_rules.OF_STATISTICS if is_statistic else model_rules.OF_STATE
                moving.append((variable, self._turn_of(value, variable.path, advice)))
            else:
                following.append(variable)
        return tuple(moving), tuple(following)

    def _turn_of(self, value: Any, what: str, advice: str = model_rules.OF_VALUES) -> int:
        turn = turn_of(self._reads.reads(value), self._updates, self._turns)
        return model_rules.check_turn(turn, self._turns[-1], what, self._step.name, advice)

    def _changes(self, call: Any) -> frozenset[int]:
        changed: Iterable[Any] = (*call.everything, *call.optimizer.variables)
        return frozenset(self._numbers[id(v)] for v in changed)
