"""What a ``train_step`` or ``test_step`` of the script contributes, and what its total becomes.

A contribution holds what the step computes for one microbatch:

* gradients that the script hands to its optimizers, times the samples if they are means;
* state that the step makes of the samples, times the samples, or what is added to it;
* metric variables.  Those that the script updates with a value of the whole batch are weighted by
  the microbatch's share of the samples.  Then the sum is what Keras would have added;
* numbers of the logs, weighted in the same way.

An update makes the script's calls of its optimizers, with the mean gradients.  A step whose updates
depend on each other takes several turns, each with a sum of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.batch_mixing import (
    BatchMixing,
    MeasuredValues,
    StepTrials,
    try_step,
    untried,
)
from holdfast.runtime.model.captured_step import (
    CapturedStep,
    Number,
    OptimizerCall,
    OwnStep,
    Starts,
    StepLogs,
    metric_starts,
    outside,
    record,
)
from holdfast.runtime.model.graph_replica import Contributor
from holdfast.runtime.model.graphs import Batch, Divide
from holdfast.runtime.model.kinds import StateKind, arrived, check_kind, notices_of, travelling
from holdfast.runtime.model.model_rules import model_variables, seed_states, unchanged
from holdfast.runtime.model.replica import Microbatch, leaves
from holdfast.runtime.model.step_plan import Planner, StepPlan

_SHARES = 2

Floats = npt.NDArray[np.float64]


class CustomVector:
    """Lays out the metrics part of a contribution, and finds metrics and numbers in totals.

    The metrics part is::

        [ share in training | share in validation | metrics | numbers | numbers of validation ]

    Shares of the microbatches of a batch add up to 1.  So the first float tells how many batches a
    sum holds, and which of the two steps they went through.  ``numbers`` are those of the logs of
    training and of validation.  ``measured`` tells what is weighted in each, the rest are sums.
    """

    def __init__(
        self,
        metrics: Sequence[Any],
        numbers: tuple[Sequence[Number], Sequence[Number]],
        measured: tuple[MeasuredValues, MeasuredValues],
    ) -> None:
        self._variables = tuple(metrics)
        sizes = [math.prod(v.shape) for v in metrics]
        self._weighted = [
            _weighted(*of_step, sizes) for of_step in zip(measured, numbers, strict=True)
        ]
        first = _SHARES + sum(sizes)
        own = first + sum(number.size for number in numbers[0])
        self.size = own + sum(number.size for number in numbers[1])
        self._of_metrics = slice(_SHARES, first)
        self._of_numbers = slice(first, own), slice(own, self.size)

    def part(self, found: FloatVector, share: float, *, training: bool) -> FloatVector:
        """Return the metrics part of a microbatch, from its metrics and numbers."""
        step = 0 if training else 1
        values = np.array(found)
        values[self._weighted[step]] *= np.float32(share)
        part = np.zeros(self.size, np.float32)
        part[step] = share
        numbers = self._of_numbers[step]
        metrics = values.size - (numbers.stop - numbers.start)
        part[self._of_metrics], part[numbers] = values[:metrics], values[metrics:]
        return part

    def numbers(self, sums: npt.NDArray[Any], *, training: bool) -> npt.NDArray[Any]:
        """Return the numbers of a batch, or means of those of several, from their metrics part."""
        step = 0 if training else 1
        numbers: npt.NDArray[Any] = sums[self._of_numbers[step]] / sums[step]
        return numbers

    def assign_metrics(self, sums: Floats, starts: Starts) -> None:
        """Give the metrics' variables the values of the sums, beside what they begin with."""
        start = _SHARES
        for variable in self._variables:
            stop = start + math.prod(variable.shape)
            value = sums[start:stop].reshape(variable.shape) + starts.get(id(variable), 0)
            variable.assign(tf.cast(value, variable.dtype))
            start = stop


def _weighted(measured: MeasuredValues, numbers: Sequence[Number], sizes: Sequence[int]) -> Any:
    """Return for each float of metrics and numbers whether it is weighted by the share."""
    of_numbers = [number.name not in measured.summed_numbers for number in numbers]
    return np.repeat(
        np.array([*measured.weighted, *of_numbers], bool),
        np.array([*sizes, *(number.size for number in numbers)], int),
    )


class KeptState:
    """The turn in hand, and the numbers of the last step's logs, if a step has them."""

    def __init__(self, plan: StepPlan) -> None:
        sizes = np.array([number.size for number in plan.logs.numbers], int)
        self._turns = np.repeat(np.array(plan.number_turns, int), sizes)
        """Of each float of the numbers."""
        self._last = plan.turns[-1]
        self._turn = _variable((), "int64", "turn")
        self._numbers = _variable((self._turns.size,), "float32", "logs")
        self.variables = [self._turn] * bool(self._last) + [self._numbers] * bool(self._turns.size)
        """Those that belong to the state; a step that needs none has none."""

    @property
    def turn(self) -> int:
        """The turn that comes next, 0 between two steps."""
        return int(np.asarray(self._turn.value)) if self._last else 0

    @property
    def numbers(self) -> FloatVector:
        """The numbers of the last step."""
        found: FloatVector = np.asarray(self._numbers.value)
        return found

    def go_on(self, numbers: FloatVector) -> None:
        """Keep the numbers that belong to the turn in hand, and go on to the next one."""
        turn = self.turn
        if self._turns.size:
            self._numbers.value.assign(np.where(self._turns == turn, numbers, self.numbers))
        if self._last:
            self._turn.value.assign((turn + 1) % (self._last + 1))


def _variable(shape: tuple[int, ...], dtype: str, name: str) -> Any:
    return keras.Variable(np.zeros(shape, dtype), dtype=dtype, trainable=False, name=name)


class StepContributor(Contributor):
    """A script's own step.

    Validation may have other samples: ``validated`` is a microbatch of it, None if there is no
    validation.
    """

    def __init__(
        self, model: Any, first: Microbatch, mixing: BatchMixing, validated: Microbatch | None
    ) -> None:
        self._model = model
        self._mixing = mixing
        batch = Batch.of(first)
        OwnStep(model, "train_step", ()).discover(batch)
        self.validates = ()
        if validated is not None:
            OwnStep(model, "test_step", ()).discover(Batch.of(validated))
            self.validates = validated.kind
        generators = seed_states(model)
        starts = metric_starts(model)
        self._step = OwnStep(model, "train_step", generators, starts)
        self._test_step = OwnStep(model, "test_step", generators, starts)
        self.seeds = len(generators) + 1
        self._test_logs: StepLogs | None = None
        self._plan: StepPlan | None = None
        self._calls: list[Any] = []
        self._like = batch.mapped(tf.TensorSpec.from_tensor)
        self._tried = self._try(self._step, first)
        self.is_undivided = bool(self._tried.summed)

    @property
    def notices(self) -> tuple[str, ...]:
        if self._mixing.keeps_batches_whole:
            return ()
        told = (self._step, self._tried), (self._test_step, self._tried_evaluation)
        odd = [line for step, tried in told for line in tried.measured.notices(step.name)]
        return *notices_of(self._tried.states), *odd

    def check(self) -> None:
        if self._mixing is not BatchMixing.REFUSED:
            return
        for variable, _ in self._found.moving:
            kind = self._tried.kind_of(variable)
            # It depends on samples, though not on the first ones.
            kind = StateKind.OTHER if kind is StateKind.SAME else kind
            check_kind(variable, kind, self._step.name)
        model_rules.check_mixing(self._tried, self._step.name)

    def learn(self, validated: Microbatch | None) -> None:
        step = self._test_step
        self._tried_evaluation = untried(step) if validated is None else self._try(step, validated)
        of_test = self._test_logs.numbers if self._test_logs else ()
        self._vector = CustomVector(
            self._model.metrics_variables,
            (self._found.logs.numbers, of_test),
            (self._tried.measured, self._tried_evaluation.measured),
        )
        self.metrics = self._vector.size
        self._kept = KeptState(self._found)
        optimizers = [call.optimizer for call in self._calls]
        self.variables = model_variables(self._model, optimizers, self._kept.variables)

    @property
    def turn(self) -> int:
        return self._kept.turn

    def applied(self, metrics: FloatVector) -> None:
        self._kept.go_on(self._vector.numbers(metrics, training=True))

    def shapes(self, turn: int) -> list[tuple[int, ...]]:
        return [tuple(v.shape) for v in self._found.variables_of(turn)]

    def graded(self, turn: int) -> list[tuple[Any, int]]:
        graded = self._found.graded
        return [(self._calls[i].optimizer, len(graded[i])) for i in self._found.calls_of(turn)]

    def divisors(self, samples: Any, metrics: Any) -> list[Any]:
        return [samples]

    def measured(self, found: FloatVector, share: float, *, training: bool) -> FloatVector:
        return self._vector.part(found, share, training=training)

    def results(self, sums: npt.NDArray[np.float64], samples: int) -> dict[str, float]:
        with unchanged(self._model.metrics_variables):
            self._vector.assign_metrics(sums, self._step.starts)
            if not sums[0] == 0.0 < sums[1]:  # not a batch of training, and some of validation
                return self._found.logs.shown(self._kept.numbers)
            if self._test_logs is None:  # its test step was not traced
                raise ProgramError(
                    f"{self._model.name!r} was not validated yet, so the logs of its "
                    "test_step are not known: give fit() validation_data"
                )
            return self._test_logs.shown(self._vector.numbers(sums, training=False))

    def hold(self, sums: npt.NDArray[np.float64], samples: int) -> None:
        self._vector.assign_metrics(sums, self._step.starts)

    @property
    def _found(self) -> StepPlan:
        assert self._plan is not None, "the first graph tells it"
        return self._plan

    def _try(self, step: OwnStep, first: Microbatch) -> StepTrials:
        """Try a step on parts of a batch; a step that needs its batch whole may have it whole."""
        if len({len(leaf) for leaf in leaves(first.parts)}) > 1:
            return untried(step)  # streams of several sizes have no parts
        try:
            return try_step(step, first)
        except Exception:  # of the script
            if not self._mixing.keeps_batches_whole:
                raise
            return untried(step)

    def sums(self, turn: int | None, batch: Batch, seeds: Any) -> list[Any]:
        if turn is None:
            return [self._validated(batch, seeds)]
        captured = self._step.capture(batch, seeds, record)
        plan = self._note_plan(captured)
        samples = float(batch.samples)
        gradients = [
            tf.convert_to_tensor(gradient) * self._tried.weight(i, samples)
            for i in plan.calls_of(turn)
            for gradient in captured.calls[i][0].gradients
        ]
        moving = [
            travelling(v, captured.value(v), samples, self._tried.kind_of(v))
            for v, of_state in plan.moving
            if of_state == turn
        ]
        metrics = [captured.added(v) for v in captured.metrics]
        numbers = plan.logs.numbers_in(captured.logs)
        turns = (*plan.metric_turns, *plan.number_turns)
        measured = [
            value if of_value == turn else tf.zeros_like(value)
            for value, of_value in zip((*metrics, *numbers), turns, strict=True)
        ]
        return [*gradients, *moving, _flat(measured)]

    def _validated(self, batch: Batch, seeds: Any) -> Any:
        """Return the metrics and numbers of a microbatch of validation."""
        step = self._test_step
        captured = step.capture(batch, seeds, record)
        model_rules.check_evaluation(captured.state, step.name)
        logs = StepLogs.of(step.model, captured.logs, captured.results, step.name)
        self._test_logs = self._test_logs or logs
        metrics = [captured.added(v) for v in captured.metrics]
        return _flat([*metrics, *logs.numbers_in(captured.logs)])

    def is_compiled(self, turn: int) -> bool:
        return not (self._found.following and turn == self._found.turns[-1])

    def update(self, turn: int, divisors: Any, sums: Sequence[Any], divide: Divide) -> None:
        samples, rest = divisors[0], iter(sums)
        gradients = {
            i: [divide(next(rest), self._tried.weight(i, samples)) for _ in self._found.graded[i]]
            for i in self._found.calls_of(turn)
        }
        if self.is_compiled(turn):
            for i, of_call in gradients.items():
                if of_call:
                    self._calls[i].make(of_call)
        else:
            self._run_again(gradients)
        moving = [v for v, of_state in self._found.moving if of_state == turn]
        for variable, total in zip(moving, rest, strict=True):
            variable.assign(arrived(variable, total, samples, self._tried.kind_of(variable)))

    def _run_again(self, gradients: dict[int, list[Any]]) -> None:
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

        zeros = self._like.mapped(lambda of_tensor: tf.zeros(of_tensor.shape, of_tensor.dtype))
        captured = self._step.capture(zeros, tf.zeros((self.seeds, 2), tf.int64), make)
        for variable in self._found.following:
            variable.assign(captured.value(variable))

    def _note_plan(self, captured: CapturedStep) -> StepPlan:
        """Learn the plan from the first trace; all later traces must agree."""
        graph = tf.compat.v1.get_default_graph()
        plan = Planner(captured, graph, self._tried.states).plan()
        first = self._plan or plan
        assert first.signature() == plan.signature(), "a step depends on the batch's shape"
        self._plan, self.turns = first, first.turns[-1] + 1
        self._calls = self._calls or [call for call, _ in captured.calls]
        return first


def _flat(values: Iterable[Any]) -> Any:
    """Return all numbers of metrics and logs as one vector."""
    flat = [tf.reshape(tf.cast(value, tf.float32), [-1]) for value in values]
    return tf.concat([tf.zeros(0), *flat], 0)
