"""What all replicas of Keras models have in common: a step in graphs, and a state by name.

A replica captures the step in graphs, one for each shape of microbatch.  Their outputs are sums
over samples, and stand side by side in the contribution.  Another graph applies the total.

There are two ways from a microbatch to sums: `KerasReplica` takes the loss of the model apart, and
`CustomReplica` runs a step of the script's own.  The latter may take several *turns*, each with a
graph and a sum of its own.

Invariant: between two calls of ``apply``, ``load`` or ``finish`` no variable changes, but in a
`LoneReplica`, which has nobody to wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.reduction import FloatVector
from holdfast.runtime.exchange.memory import aligned_vector
from holdfast.runtime.model import model_rules
from holdfast.runtime.model.graphs import Place
from holdfast.runtime.model.loss import LossScale
from holdfast.runtime.model.replica import ContributionShape, Microbatch
from holdfast.runtime.model.step_facts import GraphFacts, StepFacts, step_facts


class GraphReplica(ABC):
    """A compiled Keras model that computes contributions in graphs; ``first`` is a microbatch.

    Raises:
        ProgramError: the model cannot be trained exactly; the message names the reason.
    """

    _tensors: dict[str, Any]
    """All variables that a state holds, by name."""
    _shape: ContributionShape
    _turns = 1
    _validates: Hashable = None
    """The kind of the microbatches of validation: None if of any, ``()`` if there are none."""
    _only_shown = slice(0)
    """Metrics that need not be finite."""

    def __init__(self, model: Any, first: Microbatch) -> None:
        model_rules.check_backend(keras.backend.backend())
        model_rules.check_compiled(model, keras.Model)
        self._model = model
        self._kind = first.kind
        self._facts: tuple[tuple[Any, ...], GraphFacts] = (), GraphFacts()

    @property
    def model(self) -> Any:
        """The Keras model itself; treat it as read-only."""
        return self._model

    @property
    def shape(self) -> ContributionShape:
        """Sizes of a contribution."""
        return self._shape

    @property
    def turn(self) -> int:
        """The turn in hand, 0 between two steps."""
        return 0

    @property
    @abstractmethod
    def graphs(self) -> tuple[Any, ...]:
        """The graphs of a step: that of the first microbatch, and those of updates."""

    def facts(self) -> StepFacts:
        """Return what the step is made of; graphs are read once, for a script with many ``fit``."""
        graphs = self.graphs
        if self._facts[0] != graphs:
            self._facts = graphs, GraphFacts.of(graphs, self._model)
        return step_facts(self._model, self._facts[1], graphs)

    def prepare(self, batch: Microbatch) -> None:
        """Make and run once the graphs for microbatches of this shape, without any effect.

        Other graphs are made at their first use.  That may be in the middle of a recovery,
        if the worker has adopted a microbatch of another shape.
        """
        scratch = aligned_vector(self._shape.total)
        for turn in range(self._turns if batch.kind == self._kind else 0):
            self._write(batch, turn, scratch)
        if self._validates in (None, batch.kind):
            self.evaluate(batch, scratch[: self._shape.metrics])

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of the turn in hand over ``batch``."""
        self._write(batch, self.turn, out)

    @abstractmethod
    def _write(self, batch: Microbatch, turn: int, out: FloatVector) -> None:
        """Write the sums of a turn over ``batch``, and change nothing."""

    @abstractmethod
    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of the metrics over validation samples."""

    def takes_overflow(self, total: FloatVector) -> bool:
        """Return whether a total can be applied that is not finite.

        A metric that is not finite is only shown.  Gradients may be not finite if their optimizer
        skips such a step.
        """
        finite = np.isfinite(total)
        finite[self._shape.gradient :][self._only_shown] = True
        for optimizer, places in self._gradients():
            graded = [finite[place.start : place.stop] for place in places]
            if not all(of_tensor.all() for of_tensor in graded):
                if not LossScale(optimizer).skips_overflow:
                    return False
                for of_tensor in graded:
                    of_tensor[:] = True
        return bool(finite.all())

    @abstractmethod
    def _gradients(self) -> Iterable[tuple[Any, Sequence[Place]]]:
        """Yield each optimizer of the turn in hand, with the places of its gradients."""

    def finish(self) -> None:
        """Replace the weights by their averages if the optimizer averages them, as fit does."""
        if self._model.optimizer.built:
            self._model.optimizer.finalize_variable_values(self._model.trainable_weights)

    def state(self) -> Tensors:
        """Return views of all tensors, which are read-only and keep their values.

        TensorFlow does not write into a buffer that is referenced elsewhere, so the arrays
        are a snapshot.  It costs memory only after the next update.
        """
        read = tf.raw_ops.ReadVariableOp  # a quarter of what `read_value` takes, for small ones
        return {
            n: np.asarray(read(resource=v.value.handle, dtype=v.value.dtype))
            for n, v in self._tensors.items()
        }

    def load(self, state: Tensors) -> None:
        """Replace the whole state, or raise ProgramError and change nothing."""
        model_rules.check_tensors(self._tensors, state)
        for name, variable in self._tensors.items():
            variable.value.assign(tf.convert_to_tensor(state[name]))
