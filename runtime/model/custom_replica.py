"""A Keras model with its own ``train_step`` or ``test_step`` as an exact replica.

A contribution holds what the step computes for one microbatch:

* gradients that the script hands to its optimizers, times the samples if they are means;
* state that the step makes of the samples, times the samples, or what is added to it;
* metric variables.  Those that the script updates with a value of the whole batch are weighted by
  the microbatch's share of the samples.  Then the sum is what Keras would have added;
* numbers of the logs, weighted in the same way.

``apply`` makes the script's calls of its optimizers, with the mean gradients.  A step whose updates
depend on each other takes several turns, each with a sum of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.recovery.order import generator_seeds
from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.captured_step import CapturedStep, OptimizerCall, Step, outside, record
from holdfast.runtime.model.custom_vector import CustomVector
from holdfast.runtime.model.graph_replica import GraphReplica
from holdfast.runtime.model.graphs import (
    BorrowedTotal,
    Place,
    VectorLayout,
    compiled,
    kept,
    tensor_at,
    traced,
)
from holdfast.runtime.model.kinds import StateKind, arrived, check_kind, notices_of, travelling
from holdfast.runtime.model.model_call import Batch, flat_tensors, metric_starts, shape_key
from holdfast.runtime.model.model_rules import named_variables, unchanged
from holdfast.runtime.model.replica import ContributionShape, Microbatch, Nest, leaves
from holdfast.runtime.model.step_logs import StepLogs
from holdfast.runtime.model.step_plan import StepPlan, plan_of
from holdfast.runtime.model.step_probe import Probe, probe, untried

_VALIDATION = -1
"""Stands for the turn of a training step where a graph is one of validation."""


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
    Those that a model of the script's does not call trainable stay weights.
    """
    kinds = [*([] if model.optimizer is None else [model.optimizer]), *optimizers]
    unique = list({id(optimizer): optimizer for optimizer in kinds}.values())
    weights = [
        *model.trainable_variables,
        *(v for v in model.non_trainable_variables if not model_rules.is_generator_state(v)),
    ]
    known = {id(v) for v in weights}
    rest = (v for v in model.variables if not model_rules.is_generator_state(v))
    trained = (v for o in unique if o.built for v in getattr(o, "_trainable_variables", ()))
    for variable in (*rest, *trained):
        if id(variable) not in known:
            known.add(id(variable))
            weights.append(variable)
    of_optimizers = [v for optimizer in unique for v in optimizer.variables]
    return named_variables(weights, [*of_optimizers, *kept.variables])


def _variable(shape: tuple[int, ...], dtype: str, name: str) -> Any:
    return keras.Variable(np.zeros(shape, dtype), dtype=dtype, trainable=False, name=name)


class CustomReplica(GraphReplica):
    """A compiled Keras model that trains by its own ``train_step``.

    ``x``, ``y`` and ``weights`` are those of a microbatch, with at least one sample.  Validation
    may have other ones: ``validated`` is a microbatch of it, None if there is no validation.

    Raises:
        ProgramError: the step cannot be done in microbatches; the message names the reason.
    """

    def __init__(
        self,
        model: Any,
        x: Nest,
        y: Nest,
        weights: Nest = None,
        *,
        mixing: BatchMixing = BatchMixing.ACCEPTED,
        validated: Microbatch | None = None,
    ) -> None:
        first = Microbatch(x, y, 0, weights)
        super().__init__(model, first)
        batch = Batch.of(first)
        Step(model, "train_step", ()).discover(batch)
        self._evaluates = _discovers_evaluation(model, validated, batch)
        self._validates = (validated or first).kind if self._evaluates else ()
        generators = seed_states(model)
        starts = metric_starts(model)
        self._step = Step(model, "train_step", generators, starts)
        self._test_step = Step(model, "test_step", generators, starts)
        self._test_logs: StepLogs | None = None
        self._plan: StepPlan | None = None
        self._calls: list[Any] = []
        self._graphs: dict[tuple[int, Hashable], Any] = {}
        self._is_whole = mixing.keeps_batches_whole
        self._tried = self._try(self._step, batch)
        self._first_graph = self._graph(first, 0)
        if mixing is BatchMixing.REFUSED:
            self._refuse(self._step.name)
        self._tried_evaluation = self._try_evaluation(validated or first)
        self._vector = CustomVector(
            self._found,
            model.metrics_variables,
            self._test_logs.numbers if self._test_logs else (),
            (self._tried.measured, self._tried_evaluation.measured),
        )
        self._shape = ContributionShape(self._vector.gradient, self._vector.metrics)
        self._turns = self._found.last_turn + 1
        self._borrowed = BorrowedTotal(self._vector.gradient)
        self._kept = KeptState(self._found)
        self._tensors = replica_variables(model, [c.optimizer for c in self._calls], self._kept)
        self._updates = [
            self._trace_update(turn, layout, batch)
            for turn, layout in enumerate(self._vector.layouts)
        ]

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graphs of a step, those of the updates, and those of validation."""
        of_validation = (g for (turn, _), g in self._graphs.items() if turn == _VALIDATION)
        return self._first_graph, *self._updates, *of_validation

    @property
    def notices(self) -> tuple[str, ...]:
        """What a user should know of the training, one line each."""
        if self._is_whole:
            return ()
        told = (self._step, self._tried), (self._test_step, self._tried_evaluation)
        odd = [line for step, tried in told for line in tried.measured.notices(step.name)]
        return *notices_of(self._tried.states), *odd

    @property
    def turn(self) -> int:
        """The turn in hand, 0 between two steps."""
        return self._kept.turn

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of the metrics over validation samples."""
        self._vector.write_evaluation(out, self._run(batch, _VALIDATION), batch.share)

    def apply(self, total: FloatVector, samples: int) -> None:
        """Make the updates of the turn in hand from the total."""
        turn = self._kept.turn
        self._updates[turn](_constant(samples), self._borrowed.rows(total))
        self._kept.note_numbers(turn, self._vector.numbers(total))
        self._kept.turn = 0 if turn == self._found.last_turn else turn + 1

    def _gradients(self) -> Iterable[tuple[Any, Sequence[Place]]]:
        for i, places in self._vector.places_of_calls(self._kept.turn):
            yield self._calls[i].optimizer, places

    def results(self, sums: npt.NDArray[np.float64], samples: int) -> dict[str, float]:
        """Return the logs of the script's step, as ``fit`` shows them."""
        del samples
        with unchanged(self._model.metrics_variables):
            self._vector.assign_metrics(sums, self._step.starts)
            if self._vector.is_evaluation(sums):
                return self._logs_of_validation().shown(self._vector.evaluation_numbers(sums))
            return self._found.logs.shown(self._kept.numbers)

    def _logs_of_validation(self) -> StepLogs:
        """Return what these logs consist of.

        Raises:
            ProgramError: a model that cannot be called has no test step, which is told when it is
                used.
        """
        if self._test_logs is None:
            raise ProgramError(
                f"{self._model.name!r} was not validated yet, so the logs of its "
                "test_step are not known: give fit() validation_data"
            )
        return self._test_logs

    def hold(self, sums: npt.NDArray[np.float64], samples: int) -> None:
        """Let the model's metrics hold the sums, for those who read them from the model."""
        del samples
        self._vector.assign_metrics(sums, self._step.starts)

    @property
    def _found(self) -> StepPlan:
        assert self._plan is not None, "the first graph is traced at construction"
        return self._plan

    def _refuse(self, name: str) -> None:
        """Raise ProgramError if the step cannot be put together from what it does with parts."""
        for variable, _ in self._found.moving:
            kind = self._tried.kind_of(variable)
            # It depends on samples, though not on the first ones.
            check_kind(variable, StateKind.OTHER if kind is StateKind.SAME else kind, name)
        model_rules.check_mixing(self._tried, name)

    def _try_evaluation(self, first: Microbatch) -> Probe:
        """Trace the test step, and try it on parts of a batch, if the model has one."""
        if not self._evaluates:
            return untried(self._test_step)
        self._graph(first, _VALIDATION)
        return self._try(self._test_step, Batch.of(first))

    def _try(self, step: Step, batch: Batch) -> Probe:
        """Try a step on parts of a batch; a step that needs its batch whole may have it whole."""
        if len({int(leaf.shape[0]) for leaf in leaves((batch.x, batch.y, batch.weights))}) > 1:
            return untried(step)  # streams of several sizes have no parts
        try:
            return probe(step, batch)
        except Exception:  # of the script
            if not self._is_whole:
                raise
            return untried(step)

    def _write(self, batch: Microbatch, turn: int, out: FloatVector) -> None:
        self._vector.write(out, turn, self._run(batch, turn), batch.share)

    def _run(self, batch: Microbatch, turn: int) -> tuple[Sequence[Any], ...]:
        """Return what the step, or that of validation, makes of a microbatch."""
        seeds = tf.constant(generator_seeds(batch.seed, self._step.seeds), tf.int64)
        found: tuple[Sequence[Any], ...] = self._graph(batch, turn)(flat_tensors(batch), seeds)
        return found

    def _graph(self, batch: Microbatch, turn: int) -> Any:
        """Return the graph of a turn for microbatches of this shape, traced at its first use."""
        key = (turn, shape_key(batch))
        if key not in self._graphs:
            sums = self._validated if turn == _VALIDATION else functools.partial(self._sums, turn)
            self._graphs[key] = traced(sums, batch, self._step.seeds)
        return self._graphs[key]

    def _sums(self, turn: int, batch: Batch, seeds: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Build the graph of a contribution: tensors of the turn, metrics, numbers."""
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
        metrics = [
            captured.added(v) if of_metric == turn else tf.zeros(v.shape, v.dtype)
            for v, of_metric in zip(captured.metrics, plan.metric_turns, strict=True)
        ]
        found = zip(plan.logs.numbers_in(captured.logs), plan.number_turns, strict=True)
        numbers = [
            tf.cast(tensor if of_number == turn else tf.zeros_like(tensor), tf.float32)
            for tensor, of_number in found
        ]
        return [*gradients, *moving], metrics, numbers

    def _validated(self, batch: Batch, seeds: Any) -> tuple[list[Any], list[Any]]:
        """Build the graph of a microbatch of validation: metrics, numbers."""
        step = self._test_step
        captured = step.capture(batch, seeds, record)
        ours = {id(v) for v in (*captured.metrics, *step.generators)}
        model_rules.check_evaluation(
            [v for v, _ in captured.assigned.values() if id(v) not in ours], step.name
        )
        logs = StepLogs.of(step.model, captured.logs, captured.results, step.name)
        self._test_logs = self._test_logs or logs
        numbers = [tf.cast(tensor, tf.float32) for tensor in logs.numbers_in(captured.logs)]
        return [captured.added(v) for v in captured.metrics], numbers

    def _trace_update(self, turn: int, layout: VectorLayout, batch: Batch) -> Any:
        """Return the graph of a turn's updates: optimizers, state, what follows from weights.

        ``batch`` tells the shape of a microbatch.
        """
        moving = [v for v, of_state in self._found.moving if of_state == turn]
        graded = len(layout.places) - len(moving)

        def change(samples: Any, *totals: Any) -> None:
            self._make_calls(turn, totals[:graded], samples, batch)
            for variable, total in zip(moving, totals[graded:], strict=True):
                variable.assign(arrived(variable, total, samples, self._tried.kind_of(variable)))

        shapes = [(), *(place.shape for place in layout.places)]
        flat = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        change = (None if self._follows(turn) else compiled(change, *flat)) or change

        def update(samples: Any, rows: Any) -> None:
            totals = [tensor_at(rows, place) for place in layout.places]
            if self._tried.summed:  # no division makes tensors of their own
                totals[:graded] = map(kept, totals[:graded])
            change(samples, *totals)

        return tf.function(update, autograph=False).get_concrete_function(
            flat[0], self._borrowed.specification
        )

    def _follows(self, turn: int) -> bool:
        """Return whether the step computes something from what a turn's update makes of weights."""
        return bool(self._found.following) and turn == self._found.last_turn

    def _make_calls(self, turn: int, totals: Sequence[Any], samples: Any, batch: Batch) -> None:
        """Make the script's updates of one turn, with mean gradients."""
        rest = iter(totals)
        gradients = {
            i: [next(rest) / self._tried.weight(i, samples) for _ in self._found.graded[i]]
            for i in self._found.calls_of(turn)
        }
        if self._follows(turn):
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

        zeros = batch.mapped(tf.zeros_like)
        captured = self._step.capture(zeros, tf.zeros((self._step.seeds, 2), tf.int64), make)
        for variable in self._found.following:
            variable.assign(captured.value(variable))

    def _note_plan(self, captured: CapturedStep) -> StepPlan:
        """Learn the plan from the first trace; all later traces must agree."""
        graph = tf.compat.v1.get_default_graph()
        plan = plan_of(self._step, captured, graph, self._tried.states)
        first = self._plan or plan
        assert first.signature() == plan.signature(), "a step depends on the batch's shape"
        self._plan = first
        self._calls = self._calls or [call for call, _ in captured.calls]
        return first


def _discovers_evaluation(model: Any, validated: Microbatch | None, batch: Batch) -> bool:
    """Make what validation needs, now or later: without it the test step may not fit the batch."""
    step = Step(model, "test_step", ())
    if validated is not None:
        step.discover(Batch.of(validated))
        return True
    try:
        step.discover(batch)
    except Exception:  # any error of the user's code
        return False
    return True


@functools.lru_cache(maxsize=8)
def _constant(samples: int) -> Any:
    return tf.constant(samples, tf.float32)
