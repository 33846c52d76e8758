"""The graphs beside a script's own step: its updates of one turn, and its ``test_step``.

The updates of a turn are made with mean gradients.  A ``test_step`` runs on microbatches of
validation data.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from holdfast.recovery.order import generator_seeds
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.captured_step import CapturedStep, OptimizerCall, Step, outside, record
from holdfast.runtime.model.graphs import BorrowedTotal, VectorLayout, kept, tensor_at, traced
from holdfast.runtime.model.kinds import arrived
from holdfast.runtime.model.model_call import Batch, Starts, flat_tensors, shape_key
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.model.step_logs import Number, StepLogs
from holdfast.runtime.model.step_plan import StepPlan
from holdfast.runtime.model.step_probe import Probe


@dataclass(frozen=True, slots=True)
class TurnUpdate:
    """The updates of one turn: optimizers, moving state, and what is computed from weights."""

    step: Step
    plan: StepPlan
    calls: Sequence[OptimizerCall]
    turn: int
    tried: Probe

    def trace(self, layout: VectorLayout, borrowed: BorrowedTotal, batch: Batch) -> Any:
        """Return the graph; ``batch`` tells the shape of a microbatch."""
        moving = [v for v, turn in self.plan.moving if turn == self.turn]

        def update(samples: Any, rows: Any) -> None:
            totals = [tensor_at(rows, place) for place in layout.places]
            graded = len(totals) - len(moving)
            if self.tried.summed:  # no division makes tensors of their own
                totals[:graded] = map(kept, totals[:graded])
            self._make_calls(totals[:graded], samples, batch)
            for variable, total in zip(moving, totals[graded:], strict=True):
                variable.assign(arrived(variable, total, samples, self.tried.kind_of(variable)))

        return tf.function(update, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.float32), borrowed.specification
        )

    def _make_calls(self, totals: Sequence[Any], samples: Any, batch: Batch) -> None:
        rest = iter(totals)
        gradients = {
            i: [next(rest) / self.tried.weight(i, samples) for _ in self.plan.graded[i]]
            for i in self.plan.calls_of(self.turn)
        }
        if self.plan.following and self.turn == self.plan.last_turn:
            self._run_again(gradients, batch)
            return
        for i, of_call in gradients.items():
            if of_call:
                self.calls[i].make(of_call)

    def _run_again(self, gradients: dict[int, list[Any]], batch: Batch) -> None:
        """Trace the script's step around the updates, for what it computes from the weights.

        Its samples are zeros.  Nothing that it computes from them has an effect here, so
        TensorFlow leaves it out.
        """
        number = -1

        def make(captured: CapturedStep, call: OptimizerCall) -> None:
            nonlocal number
            number += 1
            if gradients.get(number):
                with outside(captured.scope):
                    call.make(gradients[number])

        zeros = Batch(*(_zeros(part) for part in (batch.x, batch.y, batch.weights)))
        seeds = tf.zeros((self.step.seeds, 2), tf.int64)
        captured = self.step.capture(zeros, seeds, make)
        for variable in self.plan.following:
            variable.assign(captured.value(variable))


def _zeros(part: Any) -> Any:
    return keras.tree.map_structure(lambda t: None if t is None else tf.zeros_like(t), part)


class Evaluation:
    """The test step; a model that cannot be called has none, which is told when it is used."""

    def __init__(self, model: Any, generators: tuple[Any, ...], starts: Starts) -> None:
        self._step = Step(model, "test_step", generators, starts)
        self._graphs: dict[Hashable, Any] = {}
        self._logs: StepLogs | None = None

    @property
    def step(self) -> Step:
        """The step itself."""
        return self._step

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graphs that were traced so far."""
        return tuple(self._graphs.values())

    @property
    def numbers(self) -> tuple[Number, ...]:
        """Numbers of the logs."""
        return () if self._logs is None else self._logs.numbers

    @property
    def logs(self) -> StepLogs:
        """What the logs consist of."""
        if self._logs is None:
            raise ProgramError(
                f"{self._step.model.name!r} was not validated yet, so the logs of its "
                "test_step are not known: give fit() validation_data"
            )
        return self._logs

    def learn(self, batch: Microbatch) -> None:
        """Trace the step for microbatches of this shape."""
        self._graph(batch)

    def run(self, batch: Microbatch) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return metric variables and numbers of one microbatch, from zero."""
        seeds = tf.constant(generator_seeds(batch.seed, self._step.seeds), tf.int64)
        metrics, numbers = self._graph(batch)(flat_tensors(batch), seeds)
        return metrics, numbers

    def _graph(self, batch: Microbatch) -> Any:
        key = shape_key(batch)
        if key not in self._graphs:
            self._graphs[key] = traced(self._sums, batch, self._step.seeds)
        return self._graphs[key]

    def _sums(self, batch: Batch, seeds: Any) -> tuple[list[Any], list[Any]]:
        captured = self._step.capture(batch, seeds, record)
        step, name = self._step, self._step.name
        ours = {id(v) for v in (*captured.metrics, *step.generators)}
        model_rules.check_evaluation(
            [v for v, _ in captured.assigned.values() if id(v) not in ours], name
        )
        logs = StepLogs.of(step.model, captured.logs, captured.results, name)
        self._logs = self._logs or logs
        numbers = [tf.cast(tensor, tf.float32) for tensor in logs.numbers_in(captured.logs)]
        return [captured.added(v) for v in captured.metrics], numbers
