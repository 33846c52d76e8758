"""The graph that makes the script's updates of one turn with mean gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from holdfast.runtime.custom.captured_step import CapturedStep, Step, outside
from holdfast.runtime.custom.optimizer_calls import OptimizerCall
from holdfast.runtime.custom.step_plan import StepPlan
from holdfast.runtime.custom.step_probe import Probe
from holdfast.runtime.loss.state_kinds import arrived
from holdfast.runtime.model.borrowed_total import BorrowedTotal, kept, tensor_at
from holdfast.runtime.model.tensors import Batch
from holdfast.runtime.model.vector_layout import VectorLayout


class TurnUpdate:
    """The updates of one turn: optimizers, moving state, and what is computed from weights."""

    def __init__(
        self,
        step: Step,
        plan: StepPlan,
        calls: Sequence[OptimizerCall],
        turn: int,
        tried: Probe,
    ) -> None:
        self._step = step
        self._plan = plan
        self._calls = calls
        self._turn = turn
        self._tried = tried

    def trace(self, layout: VectorLayout, borrowed: BorrowedTotal, batch: Batch) -> Any:
        """Return the graph; ``batch`` tells the shape of a microbatch."""
        moving = [v for v, turn in self._plan.moving if turn == self._turn]

        def update(samples: Any, rows: Any) -> None:
            totals = [tensor_at(rows, place) for place in layout.places]
            graded = len(totals) - len(moving)
            if self._tried.summed:  # no division makes tensors of their own
                totals[:graded] = map(kept, totals[:graded])
            self._make_calls(totals[:graded], samples, batch)
            for variable, total in zip(moving, totals[graded:], strict=True):
                variable.assign(arrived(variable, total, samples, self._tried.kind_of(variable)))

        return tf.function(update, autograph=False).get_concrete_function(
            tf.TensorSpec((), tf.float32), borrowed.specification
        )

    def _make_calls(self, totals: Sequence[Any], samples: Any, batch: Batch) -> None:
        rest = iter(totals)
        gradients = {
            i: [next(rest) / self._tried.weight(i, samples) for _ in self._plan.graded[i]]
            for i in self._plan.calls_of(self._turn)
        }
        if self._plan.following and self._turn == self._plan.last_turn:
            self._run_again(gradients, batch)
            return
        for i, of_call in gradients.items():
            if of_call:
                self._calls[i].make(of_call)

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
        seeds = tf.zeros((self._step.seeds, 2), tf.int64)
        captured = self._step.capture(zeros, seeds, make)
        for variable in self._plan.following:
            variable.assign(captured.value(variable))


def _zeros(part: Any) -> Any:
    return keras.tree.map_structure(lambda t: None if t is None else tf.zeros_like(t), part)
