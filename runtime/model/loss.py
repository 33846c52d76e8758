"""The loss of one microbatch in parts that can be added over the microbatches of a batch.

Small gradients vanish in float16.  So Keras multiplies a loss by a *scale*, and divides the
gradients again.  A scale that is too large makes them overflow.  Then the optimizer skips the step
and halves its scale.  The scale and its counter are variables of the optimizer, so they are part of
the state.  A replica wants gradients times samples.  With a dynamic scale they are multiplied after
the backward pass, in float32.  Otherwise a large microbatch would overflow where Keras does not.

The loss of a batch is a sum of *terms*, and each term is a quotient.  Its numerator is a sum over
samples.  Its denominator is the number of samples, 1, or a sum of its own: of the steps that a mask
leaves, or of sample weights.  Only numerators and denominators can be added over the microbatches
of a batch, not the quotients.

Keras computes quotients.  So each term is cut off from the rest of the loss: the rest gets a *leaf*
with the same value, and the tape sees no way from the leaf back to the term.  Then the loss can be
differentiated term by term.

Terms that share a denominator make a *part*.  A part's gradient and value are those of its
numerator; a batch that is never parted may have the gradient of the quotient itself.  One part is
the rule; then one backward pass makes the whole gradient.  Two parts are, for example, a masked
loss and a regularizer.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from holdfast.runtime.model.random_ops import replaced

LEAST_SCALE = 2.0**-24
"""The least number of float16: a smaller scale cannot be what the gradients need."""


class LossScale:
    """How a model's optimizer scales the loss."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer

    @property
    def is_dynamic(self) -> bool:
        """Whether the optimizer skips steps whose gradients overflow."""
        return hasattr(self._optimizer, "dynamic_growth_steps")

    def factor(self) -> Any:
        """Return what the optimizer multiplies a loss by."""
        return self._optimizer.scale_loss(tf.constant(1.0))

    @property
    def skips_overflow(self) -> bool:
        """Whether the optimizer skips a step whose gradients are not finite.

        A scale that has been halved very often already is not their cause.
        """
        if not self.is_dynamic:
            return False
        return float(np.asarray(self._optimizer.dynamic_scale.value)) >= LEAST_SCALE


class Kind(Enum):
    """What a term is divided by."""

    MEAN = "a mean over the samples"
    SUM = "a sum over the samples"
    RATIO = "a mean over valid steps, or over sample weights"


@dataclass(frozen=True, slots=True)
class Term:
    """One loss object's value, or one value that a layer adds to the loss."""

    value: Any
    """Its value, differentiable by the weights."""
    leaf: Any
    """The same value, which stands in the rest of the loss."""
    is_added: bool = False
    """Whether a layer has added it; it may then hold leaves of loss objects."""
    denominator: Any = None
    """The data's own denominator, None if it is the number of samples or 1."""
    key: Hashable = None
    """Terms with equal keys have equal denominators."""


@contextlib.contextmanager
def noted_terms(tape: Any) -> Iterator[list[Term]]:
    """Note the terms of losses that Keras computes meanwhile, under ``tape``."""
    noted = _Notes(tape)
    of_loss, add_loss = keras.losses.Loss.__call__, keras.layers.Layer.add_loss

    def call(loss: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        with noted.inside() as is_outermost:
            value = of_loss(loss, y_true, y_pred, sample_weight)
        return noted.loss(loss, value, y_pred, sample_weight) if is_outermost else value

    def add(layer: Any, loss: Any) -> None:
        # Keras tells a layer's losses by their identity, so leaves must be added as they are.
        add_loss(layer, [noted.added(value) for value in keras.tree.flatten(loss)])

    of_losses = replaced(keras.losses.Loss, {"__call__": call})
    with of_losses, replaced(keras.layers.Layer, {"add_loss": add}):
        yield noted.terms


class _Notes:
    """The terms so far, in the order in which they were computed."""

    def __init__(self, tape: Any) -> None:
        self.terms: list[Term] = []
        self._tape = tape
        self._depth = 0
        self._kept: list[Any] = []

    @contextlib.contextmanager
    def inside(self) -> Iterator[bool]:
        """Tell whether this is the outermost of nested loss objects."""
        self._depth += 1
        try:
            yield self._depth == 1
        finally:
            self._depth -= 1

    def loss(self, loss: Any, value: Any, prediction: Any, weights: Any) -> Any:
        """Note the value of a loss object and return its leaf."""
        mask = getattr(prediction, "_keras_mask", None)
        by_weights = loss.reduction == "mean_with_sample_weight"
        parts = [mask, weights if by_weights else None]
        if loss.reduction in ("sum", "none", None) or all(part is None for part in parts):
            return self._note(value)
        self._kept.append(parts)  # so that no other tensor gets their ids
        return self._note(value, tuple(map(id, parts)), _sum_of_product(*parts))

    def added(self, value: Any) -> Any:
        """Note a value that a layer adds to the loss and return its leaf."""
        return self._note(value, is_added=True) if tf.is_tensor(value) else value

    def _note(
        self, value: Any, key: Hashable = None, denominator: Any = None, *, is_added: bool = False
    ) -> Any:
        with self._tape.stop_recording():
            leaf = tf.identity(value)
        self._tape.watch(leaf)
        self.terms.append(Term(value, leaf, is_added, denominator, key))
        return leaf


def _sum_of_product(mask: Any, weights: Any) -> Any:
    """Return the sum of the weights at valid steps; either may be None for ones."""
    given = [tf.cast(factor, tf.float32) for factor in (mask, weights) if factor is not None]
    product = given[0]
    for factor in given[1:]:
        missing = len(product.shape) - len(factor.shape)
        product *= tf.reshape(factor, [*factor.shape, *[1] * missing]) if missing > 0 else factor
    return tf.reduce_sum(product)


class Gradients(Enum):
    """What gradients are of, and what the backward pass runs on."""

    OF_SUMS = "numerators, which it runs on"
    OF_SUMS_FROM_MEANS = "numerators; it runs on quotients, so its numbers stay small"
    OF_MEANS = "quotients, which it runs on"


@dataclass(frozen=True, slots=True)
class LossKinds:
    """What the terms of a loss are divided by, and what all else in it is."""

    terms: tuple[Kind, ...] = ()
    rest: Kind = Kind.MEAN

    def of(self, index: int) -> Kind:
        """Return the kind of a term by its number."""
        return self.terms[index] if index < len(self.terms) else Kind.MEAN


@dataclass(frozen=True, slots=True)
class Part:
    """The terms of a loss that share a denominator."""

    kind: Kind
    members: tuple[int, ...]
    has_rest: bool
    denominator: Any
    """Of this microbatch: a number or a tensor."""


class LossParts:
    """A loss, a float32 scalar that was computed under ``tape``, taken apart."""

    def __init__(
        self, tape: Any, loss: Any, terms: Sequence[Term], kinds: LossKinds, samples: int
    ) -> None:
        self._tape = tape
        self._terms = terms
        self._loss = loss
        leaves = [term.leaf for term in terms]
        self._factors: list[Any] = self._gradient(self._loss, leaves)
        weighted = zip(self._factors, leaves, strict=True)
        known = sum(_product(factor, leaf) for factor, leaf in weighted)
        self.rest = self._loss - known
        if leaves:  # an infinite term would leave a rest that is no number
            self.rest = tf.where(tf.math.is_finite(known), self.rest, 0.0)
        self._values = self._own_values()
        self.parts = _parts(terms, kinds, samples)
        self.sparse: set[int] = set()
        """Numbers of the weights whose gradients name single rows; known with the gradients."""

    def gradients(self, weights: Sequence[Any], scale: Any, wanted: Gradients) -> list[Any]:
        """Return, for each part, the gradients of what is wanted, scaled; None where none is."""
        return [self._part_gradients(part, weights, scale, wanted) for part in self.parts]

    def numerators(self) -> list[Any]:
        """Return the value of each part's numerator."""
        return [
            part.denominator
            * (sum(self._values[k] for k in part.members) + (self.rest if part.has_rest else 0.0))
            for part in self.parts
        ]

    @property
    def names(self) -> list[str]:
        """Names of the parts, which are the same in every trace of the same model."""
        ratios = itertools.count()
        return [
            f"{part.kind.name}{next(ratios)}" if part.kind is Kind.RATIO else part.kind.name
            for part in self.parts
        ]

    def quotients_in(self, value: Any) -> Iterator[tuple[tuple[str, int], Any, Any, Any]]:
        """Yield each term in ``value``, a scalar, that is no mean over samples.

        Each has a name, the leaf, the derivative of ``value`` by it, and its numerator.
        """
        for name, part in zip(self.names, self.parts, strict=True):
            if part.kind is Kind.MEAN:
                continue
            leaves = [self._terms[k].leaf for k in part.members]
            slopes = self._tape.gradient(value, leaves) if leaves else []
            for i, (leaf, slope) in enumerate(zip(leaves, slopes, strict=True)):
                if slope is not None and leaf.shape.rank == 0:
                    own = tf.cast(leaf, tf.float32) * part.denominator
                    yield (name, i), leaf, tf.cast(slope, tf.float32), own

    def _part_gradients(
        self, part: Part, weights: Sequence[Any], scale: Any, wanted: Gradients
    ) -> list[Any]:
        before = scale * part.denominator if wanted is Gradients.OF_SUMS else scale
        targets = [self._terms[k].value for k in part.members]
        factors = [self._factors[k] * tf.cast(before, self._factors[k].dtype) for k in part.members]
        if part.has_rest:
            targets.append(self._loss)
            factors.append(tf.cast(before, self._loss.dtype) * tf.ones_like(self._loss))
        found = list(self._tape.gradient(targets, weights, output_gradients=factors))
        self.sparse |= {i for i, g in enumerate(found) if isinstance(g, tf.IndexedSlices)}
        after = part.denominator if wanted is Gradients.OF_SUMS_FROM_MEANS else 1.0
        # In place, so that an eager call holds one tensor twice at most.
        for i, gradient in enumerate(found):
            if gradient is not None:
                found[i] = tf.convert_to_tensor(gradient) * after
        return found

    def _own_values(self) -> list[Any]:
        """Return the value of each term in the loss, without the leaves that stand in it.

        A layer may compute a loss object and add its value: then the loss object's leaf
        stands in the added term, and gets its factor from there.
        """
        own: list[Any] = [None] * len(self._terms)
        for j in reversed(range(len(self._terms))):
            term = self._terms[j]
            own[j] = _product(self._factors[j], term.value)
            inner = [k for k in range(j) if not self._terms[k].is_added] if term.is_added else []
            leaves = [self._terms[k].leaf for k in inner]
            for k, factor in zip(
                inner, self._gradient(term.value, leaves, self._factors[j]), strict=True
            ):
                self._factors[k] += factor
                own[j] -= _product(factor, self._terms[k].leaf)
        return own

    def _gradient(self, target: Any, leaves: list[Any], factor: Any = None) -> list[Any]:
        if not leaves:
            return []
        found: list[Any] = self._tape.gradient(
            target, leaves, output_gradients=factor, unconnected_gradients="zero"
        )
        return found


def _parts(terms: Sequence[Term], kinds: LossKinds, samples: int) -> tuple[Part, ...]:
    """Group the terms by denominator: samples first, then 1, then the data's own."""
    members: dict[Hashable, list[int]] = {Kind.MEAN: [], Kind.SUM: []}
    for k in range(len(terms)):
        kind = kinds.of(k)
        members.setdefault((kind, terms[k].key) if kind is Kind.RATIO else kind, []).append(k)
    of_mean, of_sum = members.pop(Kind.MEAN), members.pop(Kind.SUM)
    mean_rest = kinds.rest is Kind.MEAN
    parts = [Part(Kind.MEAN, tuple(of_mean), mean_rest, float(samples))]
    if of_sum or not mean_rest:
        parts.append(Part(Kind.SUM, tuple(of_sum), not mean_rest, 1.0))
    for indices in members.values():
        denominator = terms[indices[0]].denominator
        parts.append(Part(Kind.RATIO, tuple(indices), has_rest=False, denominator=denominator))
    return tuple(parts)


def _product(factor: Any, value: Any) -> Any:
    return tf.reduce_sum(tf.cast(factor, tf.float32) * tf.cast(value, tf.float32))
