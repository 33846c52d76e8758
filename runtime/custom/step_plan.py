"""What a script's step does, learned from one tracing: turns, and the part each variable plays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.custom import step_rules
from holdfast.runtime.custom.captured_step import CapturedStep, Step
from holdfast.runtime.custom.graph_reads import GraphReads
from holdfast.runtime.custom.step_logs import StepLogs
from holdfast.runtime.custom.turns import Read, Update, is_consistent, turn_of, turns_of
from holdfast.runtime.loss.state_kinds import StateKind
from holdfast.runtime.model import model_rules


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

    @property
    def last_turn(self) -> int:
        """The number of the last turn."""
        return self.turns[-1]

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


def plan_of(
    step: Step, captured: CapturedStep, graph: Any, states: Mapping[str, StateKind]
) -> StepPlan:
    """Return the plan of a step that was captured in ``graph``.

    ``states`` tells what becomes of state over the parts of a batch, as far as that is known.

    Raises:
        ProgramError: the step does what microbatches on several workers cannot do.
    """
    return _Planner(step, captured, graph, states).plan()


class _Planner:
    """Numbers all variables, and looks at what was computed from which."""

    def __init__(
        self, step: Step, captured: CapturedStep, graph: Any, states: Mapping[str, StateKind]
    ) -> None:
        self._step = step
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
        step, captured = self._step, self._captured
        name = step.name
        step_rules.check_updates(captured.calls, name)
        for i, update in enumerate(self._updates):
            is_whole = is_consistent(update.reads, self._updates, self._turns, self._turns[i])
            what = f"the gradient for {captured.calls[i][0].optimizer.name!r}"
            step_rules.check_turn(self._turns[i] if is_whole else None, what, name)
        step_rules.check_order(captured, name)
        moving, following = self._state(name)
        logs = StepLogs.of(step.model, captured.logs, captured.results, name)
        return StepPlan(
            self._turns,
            tuple(call.variables for call, _ in captured.calls),
            moving,
            following,
            tuple(self._turn_of(captured.value(v), v.path, name) for v in captured.metrics),
            tuple(
                self._turn_of(tensor, repr(number.name), name)
                for number, tensor in zip(logs.numbers, logs.numbers_in(captured.logs), strict=True)
            ),
            logs,
        )

    def _state(self, name: str) -> tuple[tuple[tuple[Any, int], ...], tuple[Any, ...]]:
        captured, step = self._captured, self._step
        known = {id(v) for v in step.model.variables}
        ours = {id(v) for v in (*captured.metrics, *step.generators)}
        moving, following = [], []
        for variable, _ in captured.assigned.values():
            if id(variable) in ours:
                continue
            step_rules.check_assigned(variable, name, is_known=id(variable) in known)
            value = captured.value(variable)
            kind = self._states.get(variable.path, StateKind.SAME)
            # The number of samples is a constant of the graph, and no data.
            if self._reads.depends_on_data(value) or kind is not StateKind.SAME:
                model_rules.check_state_change(variable)
                advice = step_rules.advice_for(variable)
                moving.append((variable, self._turn_of(value, variable.path, name, advice)))
            else:
                following.append(variable)
        return tuple(moving), tuple(following)

    def _turn_of(self, value: Any, what: str, name: str, advice: str = step_rules.OF_VALUES) -> int:
        turn = turn_of(self._reads_of(value), self._updates, self._turns)
        step_rules.check_turn(turn, what, name, advice)
        assert turn is not None
        # What depends on all updates could be measured after the step only.
        return step_rules.checked_last(turn, self._turns[-1], what, name)

    def _reads_of(self, value: Any) -> Sequence[Read]:
        return self._reads.reads(value)

    def _changes(self, call: Any) -> frozenset[int]:
        changed: Iterable[Any] = (*call.everything, *call.optimizer.variables)
        return frozenset(self._numbers[id(v)] for v in changed)
