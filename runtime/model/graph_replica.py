"""A compiled Keras model as an exact replica: a step in graphs, and a state by name.

A replica captures the step in graphs, one for each shape of microbatch.  Their outputs are sums
over samples, and stand side by side in the contribution.  Another graph applies the total.  Tensors
leave and enter as views, and are copied once at most (`graphs.BorrowedTotal`).

How a microbatch becomes sums is left to a `Contributor`, of which there are two: `ModelContributor`
takes the loss of the model apart, and `StepContributor` runs a step of the script's own.  The
latter may take several *turns*, each with a graph and a sum of its own.

Invariant: between two calls of ``apply``, ``load`` or ``finish`` no variable changes, but in a
`LoneReplica`, which has nobody to wait for.
"""

from __future__ import annotations

import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.checkpoint.reader import compare_specs
from holdfast.checkpoint.tensor import Tensors, specs_of
from holdfast.recovery.order import generator_seeds
from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.memory import aligned_vector
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.graphs import (
    Batch,
    BorrowedTotal,
    Divide,
    GraphCache,
    VectorLayout,
    VectorPlace,
    apart,
    compiled,
    flat_graph,
    flat_tensors,
    kept,
    quotient,
    scaled,
    tensor_at,
)
from holdfast.runtime.model.loss import skips_overflow
from holdfast.runtime.model.replica import ContributionShape, EpochSums, Microbatch, structure_key
from holdfast.runtime.model.step_facts import GraphFacts, StepFacts, step_facts


class Contributor(ABC):
    """What a step makes of a microbatch, and what becomes of the total over a batch.

    The step is tried when this is made.  The first call of ``sums`` tells what it holds, and then
    ``check`` and ``learn`` are called, once each.  Metrics are one float32 vector.
    """

    seeds: int
    """How many pairs of integers a call draws from."""
    metrics: int
    """Floats of the metrics part of a contribution."""
    variables: dict[str, Any]
    """All variables that a state holds, by name."""
    draws = True
    """Whether calls draw; known when they are traced."""
    is_apart = False
    """Whether sums and update are kept apart, so that they have the same bits in any graph."""
    is_undivided = False
    """Whether an update uses gradients of the total as they are."""
    validates: Hashable = None
    """The kind of the microbatches of validation: None if of any, ``()`` if there are none.

    One kind has a step of its own, which is traced before the first step.
    """
    turns = 1
    measures = EpochSums()
    """How metrics of batches become those of an epoch."""
    only_shown = slice(0)
    """Metrics that need not be finite."""

    @property
    def turn(self) -> int:
        """The turn in hand, 0 between two steps."""
        return 0

    @property
    def denominators(self) -> int:
        """How many numbers the sums of a turn are divided by."""
        return 1

    @property
    @abstractmethod
    def notices(self) -> tuple[str, ...]:
        """What a user should know of the training, one line each."""

    @abstractmethod
    def sums(self, turn: int | None, batch: Batch, seeds: Any) -> list[Any]:
        """Return the sums of a turn, in a graph: gradients, then state, and metrics at the end.

        Without a turn the batch is one of validation, which has metrics only.
        """

    @abstractmethod
    def check(self) -> None:
        """Raise ProgramError if a step cannot be put together from microbatches."""

    @abstractmethod
    def learn(self, validated: Microbatch | None) -> None:
        """Learn what is left, from traced graphs and a microbatch of validation if there is any."""

    @abstractmethod
    def shapes(self, turn: int) -> list[tuple[int, ...]]:
        """Return the shapes of a turn's tensors before the metrics."""

    @abstractmethod
    def graded(self, turn: int) -> list[tuple[Any, int]]:
        """Return the optimizers of a turn, and how many gradients each gets; these come first."""

    @abstractmethod
    def divisors(self, samples: Any, metrics: Any) -> list[Any]:
        """Return what sums are divided by, from the samples and metrics of a batch."""

    def is_compiled(self, turn: int) -> bool:
        """Return whether XLA may compile the update."""
        del turn
        return True

    @abstractmethod
    def update(self, turn: int, divisors: Any, sums: Sequence[Any], divide: Divide) -> None:
        """Update everything from the tensors before the metrics, in a graph.

        ``divide`` makes means of the sums of gradients.
        """

    def measured(self, found: FloatVector, share: float, *, training: bool) -> FloatVector:
        """Return the metrics part of a contribution, from what a graph has found."""
        del share, training
        return found

    def applied(self, metrics: FloatVector) -> None:
        """Note that the turn in hand was applied, and the metrics of its total."""
        del metrics

    @abstractmethod
    def results(self, sums: npt.NDArray[np.float64], samples: int) -> dict[str, float]:
        """Return what ``fit`` shows, from settled sums; ``name/0``, ``name/1`` of an array."""

    @abstractmethod
    def hold(self, sums: npt.NDArray[np.float64], samples: int) -> None:
        """Let the model's metrics hold settled sums, for those who read them from the model."""


class GraphReplica:
    """A compiled Keras model that computes contributions and applies totals.

    ``first`` is one of the microbatches to train with, and ``validated`` one of those to validate
    with.  If they have the shape of the job's microbatches, their graphs are ready before the first
    step.

    Raises:
        ProgramError: the model cannot be trained exactly; the message names the reason.
    """

    def __init__(
        self,
        model: Any,
        contributor: Contributor,
        first: Microbatch,
        validated: Microbatch | None = None,
    ) -> None:
        self.model = model
        """The Keras model itself; treat it as read-only."""
        self._of_step = contributor
        self._kind = first.kind
        self._facts: tuple[tuple[Any, ...], GraphFacts] = (), GraphFacts()
        self._graphs = GraphCache()
        self._tests: list[Any] = []
        self._no_seeds = tf.zeros((contributor.seeds, 2), tf.int64)
        self._first_graph = self._graph(first, 0)
        contributor.check()
        if contributor.validates and validated is not None:
            self._graph(validated, None)
        contributor.learn(validated)
        self.measures, self.notices = contributor.measures, contributor.notices
        self.results, self.hold = contributor.results, contributor.hold
        self._updates: list[Any] = []
        self.shape = ContributionShape(self._make_ready(), contributor.metrics)
        """Sizes of a contribution."""

    @property
    def turn(self) -> int:
        return self._of_step.turn

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graphs of a step: that of the first microbatch, updates, and own steps of tests."""
        found = self._first_graph, *self._updates, *self._tests
        return tuple(each.graph for each in found)

    def facts(self) -> StepFacts:
        """Return what the step is made of; graphs are read once, for a script with many ``fit``."""
        graphs = self.graphs
        if self._facts[0] != graphs:
            self._facts = graphs, GraphFacts.of(graphs, self.model)
        return step_facts(self.model, self._facts[1], graphs)

    def prepare(self, batch: Microbatch) -> None:
        """Make and run once the graphs for microbatches of this shape, without any effect.

        Other graphs are made at their first use.  That may be in the middle of a recovery,
        if the worker has adopted a microbatch of another shape.
        """
        scratch = aligned_vector(self.shape.total)
        for turn in range(self._of_step.turns if batch.kind == self._kind else 0):
            self._write(batch, turn, scratch)
        if self._of_step.validates in (None, batch.kind):
            self.evaluate(batch, scratch[: self.shape.metrics])

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of the turn in hand over ``batch``."""
        self._write(batch, self.turn, out)

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of the metrics over validation samples."""
        (metrics,) = self._run(batch, None)
        out[:] = self._of_step.measured(np.asarray(metrics), batch.share, training=False)

    def apply(self, total: FloatVector, samples: int) -> None:
        """Update weights, optimizers and state from the total of the turn in hand."""
        turn, metrics = self.turn, total[self.shape.gradient :]
        divisors = constant(*self._of_step.divisors(samples, metrics))
        self._updates[turn](divisors, self._borrowed.rows(total))
        self._of_step.applied(metrics)

    def takes_overflow(self, total: FloatVector) -> bool:
        """Return whether a total can be applied that is not finite.

        A metric that is not finite is only shown.  Gradients may be not finite if their optimizer
        skips such a step.
        """
        finite = np.isfinite(total)
        finite[self.shape.gradient :][self._of_step.only_shown] = True
        for optimizer, places in self._gradients():
            graded = [finite[place.start : place.stop] for place in places]
            if not all(of_tensor.all() for of_tensor in graded):
                if not skips_overflow(optimizer):
                    return False
                for of_tensor in graded:
                    of_tensor[:] = True
        return bool(finite.all())

    def finish(self) -> None:
        """Replace the weights by their averages if the optimizer averages them, as fit does."""
        if self.model.optimizer.built:
            self.model.optimizer.finalize_variable_values(self.model.trainable_weights)

    def state(self) -> Tensors:
        """Return views of all tensors, which are read-only and keep their values.

        TensorFlow does not write into a buffer that is referenced elsewhere, so the arrays
        are a snapshot.  It costs memory only after the next update.
        """
        read = tf.raw_ops.ReadVariableOp  # a quarter of what `read_value` takes, for small ones
        return {
            n: np.asarray(read(resource=v.value.handle, dtype=v.value.dtype))
            for n, v in self._of_step.variables.items()
        }

    def load(self, state: Tensors) -> None:
        """Replace the whole state, or raise ProgramError and change nothing."""
        difference = compare_specs(specs_of(self.state()), specs_of(state))
        if difference is not None:
            raise ProgramError(
                f"the state to load is of another model: {difference}; start with the script that "
                "wrote it, or in a new run directory"
            )
        for name, variable in self._of_step.variables.items():
            variable.value.assign(tf.convert_to_tensor(state[name]))

    def _gradients(self) -> Iterable[tuple[Any, Sequence[VectorPlace]]]:
        """Yield each optimizer of the turn in hand, with the places of its gradients."""
        places = iter(self._layouts[self.turn].places)
        for optimizer, count in self._of_step.graded(self.turn):
            yield optimizer, tuple(itertools.islice(places, count))

    def _make_ready(self) -> int:
        """Make what an update needs; return the floats in a contribution before the metrics."""
        turns, shapes = range(self._of_step.turns), self._of_step.shapes
        self._layouts = [VectorLayout.of(shapes(turn)) for turn in turns]
        self._borrowed = BorrowedTotal(max(layout.size for layout in self._layouts))
        self._updates += map(self._trace_update, turns)
        return max(layout.size for layout in self._layouts)

    def _write(self, batch: Microbatch, turn: int, out: FloatVector) -> None:
        """Write the sums of a turn over ``batch``, and change nothing."""
        *tensors, metrics = self._run(batch, turn)
        size = self.shape.gradient
        self._layouts[turn].write(out[:size], tensors)
        out[size:] = self._of_step.measured(np.asarray(metrics), batch.share, training=True)

    def _run(self, batch: Microbatch, turn: int | None, *more: Any) -> Sequence[Any]:
        """Run the graph of a turn, perhaps with ``more`` inputs; without a turn that of a test."""
        graph = self._graph(batch, turn)
        seeds = self._no_seeds
        if self._of_step.draws:
            seeds = tf.constant(generator_seeds(batch.seed, len(seeds)), tf.int64)
        outputs: Sequence[Any] = graph(*flat_tensors(batch), seeds, *more)
        return outputs

    def _graph(self, batch: Microbatch, turn: int | None) -> Any:
        """Return the graph for microbatches of this shape, traced at its first use.

        Shapes are fixed in the graph, because TensorFlow's bits may depend on them.  So the
        bits do not depend on the shapes of a worker's earlier microbatches.
        """
        key = turn, structure_key(batch.parts)
        return self._graphs.get(key, lambda: self._trace(batch, turn))

    def _trace(self, batch: Microbatch, turn: int | None) -> Any:
        def sums(tensors: Any, seeds: Any) -> Any:
            return self._sums(batch, turn)(tensors, seeds)

        graph = flat_graph(sums, *self._specifications(batch))
        if turn is None and self._of_step.validates:
            self._tests.append(graph)
        return graph

    def _sums(self, batch: Microbatch, turn: int | None) -> Callable[..., Any]:
        """Return the function of tensors and seeds that computes the sums, for graphs."""

        def sums(tensors: Any, seeds: Any) -> list[Any]:
            found = self._of_step.sums(turn, Batch.of(batch, tensors), seeds)
            model_rules.check_operations(tf.compat.v1.get_default_graph().as_graph_def())
            return found

        return apart(sums) if self._of_step.is_apart else sums

    def _specifications(self, batch: Microbatch) -> tuple[Any, Any]:
        """Return the inputs of every graph: tensors of a batch, and the seeds of its draws."""
        tensors = [tf.TensorSpec.from_tensor(tensor) for tensor in flat_tensors(batch)]
        return tensors, tf.TensorSpec(self._no_seeds.shape, tf.int64)

    @functools.cached_property
    def _changes(self) -> list[Callable[..., Any]]:
        """The update of each turn as a function of divisors and sums, for graphs; traced once.

        A lone worker has the same one in another graph.
        """
        return [self._change_of(turn) for turn in range(self._of_step.turns)]

    def _change_of(self, turn: int) -> Callable[..., Any]:
        def change_by(divide: Divide) -> Callable[..., Any]:
            return lambda divisors, *sums: self._of_step.update(turn, divisors, sums, divide)

        shapes = [(self._of_step.denominators,), *self._of_step.shapes(turn)]
        flat = [tf.TensorSpec(shape, tf.float32) for shape in shapes]
        found = compiled(change_by(scaled), *flat) if self._of_step.is_compiled(turn) else None
        change = change_by(quotient)
        return found or (apart(change) if self._of_step.is_apart else change)

    def _trace_update(self, turn: int) -> Any:
        """Build the graph that divides the sums of a turn and updates everything."""
        places, change = self._layouts[turn].places, self._changes[turn]
        graded = sum(count for _, count in self._of_step.graded(turn))

        def update(divisors: Any, rows: Any) -> None:
            sums = [tensor_at(rows, place) for place in places]
            if self._of_step.is_undivided:  # no division makes tensors of their own
                sums[:graded] = map(kept, sums[:graded])
            change(divisors, *sums)

        divisors = tf.TensorSpec((self._of_step.denominators,), tf.float32)
        return flat_graph(update, divisors, self._borrowed.specification)


@functools.lru_cache(maxsize=16)
def constant(*numbers: Any) -> Any:
    """Return what sums are divided by as a tensor; steps mostly have one or two of them."""
    return tf.constant(numbers, tf.float32)
