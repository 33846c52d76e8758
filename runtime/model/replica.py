"""The protocol between the trainer and a replica, which holds a model.

A replica turns a microbatch into one *contribution*: a flat float32 vector that
may be added to the contributions of other microbatches in a fixed tree.  It is
laid out as::

    [ gradient: sums over the samples, ``gradient`` floats | metrics: sums, ``metrics`` floats ]

The trainer adds contributions up and hands the total back.  Nothing else ever changes a
replica, so all replicas of a world have the same bytes after the same step.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.partial import FloatVector
from holdfast.runtime.model.nest import Nest, kind_key, leaves
from holdfast.runtime.model.step_facts import StepFacts


@dataclass(frozen=True, slots=True)
class ContributionShape:
    """Sizes, in floats, of the two parts of a contribution."""

    gradient: int
    metrics: int

    @property
    def total(self) -> int:
        """Number of floats of a whole contribution."""
        return self.gradient + self.metrics


@dataclass(frozen=True, slots=True)
class Microbatch:
    """Samples of one microbatch and the seed of everything random about it.

    ``seed`` is a pure function of the job's seed, the step and the
    microbatch's index: it does not depend on which worker computes.
    """

    x: Nest
    """Inputs: an array, or a dict, list or tuple of arrays; the first axis counts samples."""
    y: Nest
    """Targets, None for a model that needs none."""
    seed: int
    weights: Nest = None
    """Sample weights, if there are any: one array, or one for each output."""
    batch_samples: int = 0
    """Samples of the whole batch that this is a part of, 0 if that is not known."""

    def of_batch(self, samples: int) -> Microbatch:
        """Return this microbatch as a part of a batch of so many samples."""
        return replace(self, batch_samples=samples)

    @property
    def share(self) -> float:
        """The part of its batch; the number of samples if the batch is not known."""
        return self.samples / self.batch_samples if self.batch_samples else float(self.samples)

    @property
    def kind(self) -> Hashable:
        """Structure, ranks and dtypes; steps of training and validation may take other ones."""
        return kind_key((self.x, self.y, self.weights))

    @property
    def samples(self) -> int:
        """Number of samples; never 0, the trainer skips empty microbatches."""
        return len(leaves(self.x)[0])


@runtime_checkable
class Replica(Protocol):
    """A worker's copy of model and optimizer."""

    @property
    def shape(self) -> ContributionShape:
        """Sizes of a contribution; constant for the life of the replica."""

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the sums of gradients and metrics over ``batch`` into ``out``.

        ``out`` has ``shape.total`` floats, is C-contiguous and begins at a
        multiple of 64 bytes.  It may hold anything before, and the replica may
        not keep a reference to it.  The replica's own state must not change.
        """

    def apply(self, total: FloatVector, samples: int) -> None:
        """Update the state from the sum of the contributions of ``samples`` samples.

        ``total`` is read-only, because all workers of the host read the same memory.  It is
        valid only during the call.
        """

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        """Write the metrics' sums over validation samples into ``out`` (``shape.metrics`` long)."""

    def results(self, sums: npt.NDArray[np.float64], samples: int) -> dict[str, float]:
        """Return named metric values, ``loss`` among them, from sums over ``samples`` samples.

        Sums of a replica that settles batches are settled (`loss.settling`).
        """

    def state(self) -> Tensors:
        """Return all tensors by name, as arrays that may alias the live state."""

    def load(self, state: Tensors) -> None:
        """Replace the whole state; names, shapes and dtypes are those of ``state()``."""


@runtime_checkable
class OverflowTaker(Protocol):
    """A replica that knows what to do when gradients overflow, such as one that scales its loss."""

    def takes_overflow(self, total: FloatVector) -> bool:
        """Return whether ``apply`` takes this total, which holds an infinity or a NaN.

        ``total`` is valid only during the call.  All replicas of a world have the same bytes
        and see the same total, so all of them must return the same.
        """


@runtime_checkable
class TurnTaker(Protocol):
    """A replica whose update takes several turns, each with a sum of its own.

    ``contribute`` and ``apply`` do the turn in hand, and ``apply`` goes on to the next one.
    """

    @property
    def turn(self) -> int:
        """The turn in hand, 0 between two updates; a part of the state."""


@runtime_checkable
class MetricsHolder(Protocol):
    """A replica of a model whose metrics the script may read between two transactions."""

    def hold(self, sums: npt.NDArray[np.float64], samples: int) -> None:
        """Let the model's metrics hold these sums over ``samples`` samples, which are settled."""


@runtime_checkable
class Finishing(Protocol):
    """A replica whose weights are changed once more when the training has ended."""

    def finish(self) -> None:
        """Make the weights those that the training ends with; again, it changes nothing."""


@runtime_checkable
class Described(Protocol):
    """A replica that tells what its step is made of."""

    def facts(self) -> StepFacts:
        """Return what all workers must have alike, beside names and shapes of the state."""


def make_model(model: Any) -> Any:
    """Return ``model``, or what it makes if it is a function without arguments, or a class."""
    # A Keras model is callable, too.
    is_made = hasattr(model, "trainable_variables") and not isinstance(model, type)
    return model() if callable(model) and not is_made else model
