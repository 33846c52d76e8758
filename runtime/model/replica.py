"""The protocol between the trainer and a replica, which holds a model.

The arrays of a microbatch are *nests*: one array, or dicts, lists and tuples of them at any depth.
None stands for arrays that are not there, such as the targets of an autoencoder.

A replica turns a microbatch into one *contribution*: a flat float32 vector that may be added to the
contributions of other microbatches in a fixed tree.  It is laid out as::

    [ gradient: sums over the samples, ``gradient`` floats | metrics: sums, ``metrics`` floats ]

The trainer adds contributions up and hands the total back.  Nothing else ever changes a replica, so
all replicas of a world have the same bytes after the same step.

Most metrics are sums over samples, and are added as they come, to those of an epoch.  A replica may
have others: what a batch adds to them is known only when the whole batch is summed.  So a pass over
validation data then keeps the sums of its batches apart, each with its samples.

Most metrics begin anew with each pass.  Those that no reset empties go on: their sums are carried
from one pass to the next, and are a part of the cursor.

This file knows no Keras: data are checked before TensorFlow is loaded.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.reduction import FloatVector

Array: TypeAlias = npt.NDArray[np.generic]
Nest: TypeAlias = Any
"""An array, None, or a dict, list or tuple of nests; a recursive type tells no more in practice."""


def leaves(nest: Nest) -> list[Any]:
    """Return the arrays of a nest in their order, without None."""
    return [leaf for _, leaf in named_leaves(nest)]


def named_leaves(nest: Nest, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a nest, each with the expression that leads to it: ``x['age'][0]``."""
    if isinstance(nest, np.ndarray):
        yield name, nest
    elif isinstance(nest, Mapping):
        for key, value in nest.items():
            yield from named_leaves(value, f"{name}[{key!r}]")
    elif isinstance(nest, (list, tuple)):
        for index, value in enumerate(nest):
            yield from named_leaves(value, f"{name}[{index}]")
    elif nest is not None:
        yield name, nest


def map_leaves(function: Callable[[Any], Any], nest: Nest) -> Nest:
    """Return a nest of the same structure with ``function`` of each array; lists become tuples.

    Keras hands tuples to a model too, also where the script gave lists to ``fit``.
    """
    if isinstance(nest, np.ndarray):
        return function(nest)
    if isinstance(nest, Mapping):
        return dict_like(nest, {key: map_leaves(function, value) for key, value in nest.items()})
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        return type(nest)(*(map_leaves(function, value) for value in nest))
    if isinstance(nest, (list, tuple)):
        return tuple(map_leaves(function, value) for value in nest)
    return None if nest is None else function(nest)


def dict_like(nest: Mapping[Any, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """Return ``items`` as an OrderedDict if ``nest`` is one.

    Keras flattens an OrderedDict in its own order, and any other dict in the order of its sorted
    keys.  So a model of several inputs gets them in another order.
    """
    return OrderedDict(items) if isinstance(nest, OrderedDict) else items


def pack(structure: Nest, arrays: Iterator[Any]) -> Nest:
    """Return the next arrays in the structure of another nest."""
    return map_leaves(lambda _: next(arrays), structure)


def structure_key(nest: Nest) -> Hashable:
    """Return structure, shapes and dtypes of a nest, to be compared or looked up."""
    return tuple((name, leaf.shape, leaf.dtype) for name, leaf in named_leaves(nest))


def is_nest_of_arrays(value: object) -> bool:
    """Return whether ``value`` is a dict, or a list or tuple with arrays at any depth.

    A list of numbers, or of lists of numbers, is one array.
    """
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, (list, tuple)):
        return False
    return any(hasattr(item, "shape") or is_nest_of_arrays(item) for item in value)


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

    @property
    def parts(self) -> tuple[Nest, Nest, Nest]:
        """Inputs, targets and weights."""
        return self.x, self.y, self.weights

    def rows(self, rows: slice | list[int]) -> Microbatch:
        """Return some of the samples, as if there were no others; one may come more than once."""
        x, y, weights = map_leaves(lambda array: np.asarray(array)[rows], self.parts)
        return Microbatch(x, y, self.seed, weights)

    @property
    def share(self) -> float:
        """The part of its batch; the number of samples if the batch is not known."""
        return self.samples / self.batch_samples if self.batch_samples else float(self.samples)

    @property
    def kind(self) -> Hashable:
        """Structure, ranks and dtypes; steps of training and validation may take other ones."""
        return tuple((name, leaf.ndim, leaf.dtype) for name, leaf in named_leaves(self.parts))

    @property
    def samples(self) -> int:
        """Number of samples; never 0, the trainer skips empty microbatches."""
        return len(leaves(self.x)[0])


@runtime_checkable
class Replica(Protocol):
    """A worker's copy of model and optimizer.

    These are optional:

    * ``takes_overflow(total)`` returns whether ``apply`` takes a total with an infinity or a NaN.
      All replicas of a world see the same total, so all of them must return the same;
    * ``turn``: the turn in hand of an update in several ones, each with a sum of its own.
      ``contribute`` and ``apply`` do it, and ``apply`` goes on to the next.  It is 0 between two
      updates, and a part of the state;
    * ``finish()`` makes the weights those that the training ends with; again, it changes nothing;
    * ``prepare(batch)`` becomes ready for microbatches of this shape, and changes no state;
    * ``hold(sums, samples)`` gives settled sums to metrics that the script may read;
    * ``facts()`` returns what all workers must have alike beside names and shapes of the state;
    * ``measures``, as `EpochSums` says, and ``notices``: lines that a user should know.
    """

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

        Sums of a replica that settles batches are settled (`settle`).
        """

    def state(self) -> Tensors:
        """Return all tensors by name, as arrays that may alias the live state."""

    def load(self, state: Tensors) -> None:
        """Replace the whole state; names, shapes and dtypes are those of ``state()``."""


def hold_metrics(replica: Replica, sums: npt.NDArray[np.float64], samples: int) -> None:
    """Let a model's metrics be what they are after this work in Keras, if the script can see them.

    ``sums`` over ``samples`` samples are settled.
    """
    if hold := getattr(replica, "hold", None):
        hold(sums, samples)


def make_model(model: Any) -> Any:
    """Return ``model``, or what it makes if it is a function without arguments, or a class."""
    # A Keras model is callable, too.
    is_made = hasattr(model, "trainable_variables") and not isinstance(model, type)
    return model() if callable(model) and not is_made else model


Sums = npt.NDArray[np.float64]


class EpochSums:
    """How the metrics of batches become those of an epoch: as sums over samples that begin anew.

    A replica with other metrics has an attribute ``measures`` of a class below this one.
    """

    @property
    def is_additive(self) -> bool:
        """Whether all metrics are sums over samples, so that nothing needs to be settled.

        A quotient of sums, such as a masked loss, is none.
        """
        return True

    def settle(self, sums: Sums, samples: int) -> Sums:
        """Return what the metrics of one whole batch add to the sums of an epoch.

        ``sums`` are those of all microbatches of the batch, which has ``samples`` samples.
        """
        del samples
        return sums

    def first_sums(self, size: int) -> Sums:
        """Return the sums with which a training begins: what metrics hold that no reset empties."""
        return np.zeros(size)

    def carried(self, sums: Sums) -> Sums:
        """Return the sums with which the next pass begins, from those of an epoch."""
        return np.zeros_like(sums)

    def with_pass(self, sums: Sums, passed: Sums) -> Sums:
        """Return the sums of an epoch, with those of a pass over validation data to be carried."""
        del passed
        return sums


def epoch_sums(replica: object) -> EpochSums:
    """Return how a replica's metrics of batches become those of an epoch."""
    measures = getattr(replica, "measures", None)
    return measures if isinstance(measures, EpochSums) else EpochSums()


def first_cursor(replica: Replica, step: int) -> Cursor:
    """Return the cursor of a training that begins at ``step``."""
    size = replica.shape.metrics
    return replace(Cursor.start(size, step), sums=epoch_sums(replica).first_sums(size))


class PassLayout:
    """Where the sums of the batches of a pass over validation data stand.

    ``metrics`` is the number of floats of the replica's metrics.
    """

    def __init__(self, replica: object, metrics: int, batches: int) -> None:
        self._is_apart = not epoch_sums(replica).is_additive
        self._batches = batches if self._is_apart else 1
        self._metrics = metrics
        self.size = self._batches * (metrics + self._is_apart)
        """Floats of a leaf."""

    def add(self, out: FloatVector, batch: int, one: FloatVector, samples: int) -> None:
        """Add the metrics of some samples of batch number ``batch`` to a leaf."""
        block = out.reshape(self._batches, -1)[batch % self._batches]
        block[: self._metrics] += one
        block[self._metrics :] += samples


def pass_sums(replica: object, metrics: int, contribution: FloatVector) -> Sums:
    """Return the sums of a pass over validation data, from its total."""
    sums: Sums = contribution.astype(np.float64)
    measures = epoch_sums(replica)
    if measures.is_additive:
        return sums
    batches = sums.reshape(-1, metrics + 1)
    settled = [measures.settle(batch[:-1], int(batch[-1])) for batch in batches if batch[-1]]
    return sum(settled, np.zeros(metrics))
