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

The metrics part of a contribution holds the loss, metric variables, and what they are divided by::

    [ loss times samples | metric variables | numerators, denominators and factors, carried ]

Most entries are sums over samples.  Two kinds are not, and become so once the sums over the
microbatches of one batch are known (`settle`):

* a quotient, such as a masked loss: its numerator and its denominator are summed apart;
* a variable that counts batches, such as a tracker that the script updates with the loss of
  each batch: microbatches add theirs times their samples.

A variable that adds up a sum over each batch, such as a tracker of a loss that sums, adds up over
microbatches as it is.

A variable that no reset empties is *carried*: it goes on from what it held.  What validation adds
to it counts for the next epoch only, so that has an entry of its own, which no microbatch fills.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.random_ops import replaced
from holdfast.runtime.model.replica import EpochSums, Sums

LEAST_SCALE = 2.0**-24
"""The least number of float16: a smaller scale cannot be what the gradients need."""


def has_dynamic_scale(optimizer: Any) -> bool:
    """Return whether an optimizer skips steps whose gradients overflow, and scales the loss so."""
    return hasattr(optimizer, "dynamic_growth_steps")


def skips_overflow(optimizer: Any) -> bool:
    """Return whether an optimizer skips a step whose gradients are not finite.

    A scale that has been halved very often already is not their cause.
    """
    is_scaled = has_dynamic_scale(optimizer)
    return is_scaled and float(np.asarray(optimizer.dynamic_scale.value)) >= LEAST_SCALE


class TermKind(Enum):
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

    terms: tuple[TermKind, ...] = ()
    rest: TermKind = TermKind.MEAN

    def of(self, index: int) -> TermKind:
        """Return the kind of a term by its number."""
        return self.terms[index] if index < len(self.terms) else TermKind.MEAN


@dataclass(frozen=True, slots=True)
class LossPart:
    """The terms of a loss that share a denominator."""

    kind: TermKind
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
        self.terms = terms
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
            f"{part.kind.name}{next(ratios)}" if part.kind is TermKind.RATIO else part.kind.name
            for part in self.parts
        ]

    def quotients_in(self, value: Any) -> Iterator[tuple[tuple[str, int], Any, Any, Any]]:
        """Yield each term in ``value``, a scalar, that is no mean over samples.

        Each has a name, the leaf, the derivative of ``value`` by it, and its numerator.
        """
        for name, part in zip(self.names, self.parts, strict=True):
            if part.kind is TermKind.MEAN:
                continue
            leaves = [self.terms[k].leaf for k in part.members]
            slopes = self._tape.gradient(value, leaves) if leaves else []
            for i, (leaf, slope) in enumerate(zip(leaves, slopes, strict=True)):
                if slope is not None and leaf.shape.rank == 0:
                    own = tf.cast(leaf, tf.float32) * part.denominator
                    yield (name, i), leaf, tf.cast(slope, tf.float32), own

    def _part_gradients(
        self, part: LossPart, weights: Sequence[Any], scale: Any, wanted: Gradients
    ) -> list[Any]:
        before = scale * part.denominator if wanted is Gradients.OF_SUMS else scale
        targets = [self.terms[k].value for k in part.members]
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
        own: list[Any] = [None] * len(self.terms)
        for j in reversed(range(len(self.terms))):
            term = self.terms[j]
            own[j] = _product(self._factors[j], term.value)
            inner = [k for k in range(j) if not self.terms[k].is_added] if term.is_added else []
            leaves = [self.terms[k].leaf for k in inner]
            for k, factor in zip(
                inner, self._gradient(term.value, leaves, self._factors[j]), strict=True
            ):
                self._factors[k] += factor
                own[j] -= _product(factor, self.terms[k].leaf)
        return own

    def _gradient(self, target: Any, leaves: list[Any], factor: Any = None) -> list[Any]:
        if not leaves:
            return []
        found: list[Any] = self._tape.gradient(
            target, leaves, output_gradients=factor, unconnected_gradients="zero"
        )
        return found


def _parts(terms: Sequence[Term], kinds: LossKinds, samples: int) -> tuple[LossPart, ...]:
    """Group the terms by denominator: samples first, then 1, then the data's own."""
    members: dict[Hashable, list[int]] = {TermKind.MEAN: [], TermKind.SUM: []}
    for k in range(len(terms)):
        kind = kinds.of(k)
        members.setdefault((kind, terms[k].key) if kind is TermKind.RATIO else kind, []).append(k)
    of_mean, of_sum = members.pop(TermKind.MEAN), members.pop(TermKind.SUM)
    mean_rest = kinds.rest is TermKind.MEAN
    parts = [LossPart(TermKind.MEAN, tuple(of_mean), mean_rest, float(samples))]
    if of_sum or not mean_rest:
        parts.append(LossPart(TermKind.SUM, tuple(of_sum), not mean_rest, 1.0))
    for indices in members.values():
        denominator = terms[indices[0]].denominator
        parts.append(
            LossPart(TermKind.RATIO, tuple(indices), has_rest=False, denominator=denominator)
        )
    return tuple(parts)


def _product(factor: Any, value: Any) -> Any:
    return tf.reduce_sum(tf.cast(factor, tf.float32) * tf.cast(value, tf.float32))


_LOSS = 0

_SAMPLES, _ONE = -2, -1
"""What stands behind the entries when a batch is settled: its samples, and 1."""


class Measures(EpochSums):
    """Where the entries stand, and how they become the numbers that Keras shows."""

    def __init__(
        self,
        variables: Sequence[Any],
        by_batch: Iterable[int] = (),
        carried: Iterable[int] = (),
        summed: Iterable[int] = (),
    ) -> None:
        """``variables`` are those that an update changes, the others some of them, by number."""
        self._variables = tuple(variables)
        self._by_batch = frozenset(by_batch)
        self._summed = frozenset(summed)
        sizes = [math.prod(v.shape) for v in variables]
        self._starts = (1 + np.cumsum([0, *sizes])).tolist()
        self._entries: dict[Hashable, int] = {}
        self._quotients: list[tuple[int, ...]] = []
        """To the first entry is added second * third / fourth when a batch is settled."""
        self._carried = tuple(carried)
        self._scaled, self._places = (
            [i for n in numbers for i in range(self._starts[n], self._starts[n + 1])]
            for numbers in (self._by_batch, self._carried)
        )
        self._since = [self._entry(("carried", place)) for place in self._places]
        self._is_fixed = False

    @property
    def size(self) -> int:
        """Floats of the metrics part."""
        return int(self._starts[-1]) + len(self._entries)

    @property
    def is_additive(self) -> bool:
        return not (self._quotients or self._scaled)

    def denominator_of(self, part: Hashable) -> int:
        """Return the entry of a loss part's denominator."""
        return self._entries[part, "denominator"]

    @property
    def of_variables(self) -> slice:
        """The entries of metric variables."""
        return slice(1, self._starts[-1])

    def loss_entries(self, metrics: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return a metrics part with zeros in place of the metric variables."""
        only: npt.NDArray[np.float32] = metrics.copy()
        only[self.of_variables] = 0.0
        return only

    def sums(self, values: Sequence[Any], loss: LossParts, samples: int, *, shown: Any) -> Any:
        """Return the metrics part of one microbatch as a tensor.

        ``values`` are the variables after the update.  ``shown`` is the loss that Keras shows, None
        if it is the loss that is differentiated.
        """
        extra: dict[Hashable, Any] = {}
        numerators = loss.numerators()
        if shown is not None:
            numerators = [shown * float(samples), *(0.0 * n for n in numerators[1:])]
        for name, part, numerator in zip(loss.names, loss.parts, numerators, strict=True):
            if part.kind is not TermKind.MEAN:
                extra[name, "numerator"] = numerator
            if part.kind is TermKind.RATIO:
                extra[name, "denominator"] = part.denominator
                self._quotient(_LOSS, (name, "numerator"), _SAMPLES, (name, "denominator"))
            elif part.kind is TermKind.SUM:
                self._quotient(_LOSS, (name, "numerator"), _SAMPLES, _ONE)
        flat = [
            tf.reshape(self._traced(n, value, loss, samples, extra), [-1])
            for n, value in enumerate(values)
        ]
        tail = self._tail(extra)
        self._is_fixed = True
        entries = [numerators[0], *tail]
        first, *rest = [tf.reshape(tf.cast(entry, tf.float32), [1]) for entry in entries]
        return tf.concat([first, *flat, *rest], 0)

    def settle(self, sums: Sums, samples: int) -> Sums:
        if self.is_additive:
            return sums
        settled = np.append(sums, (samples, 1.0))
        settled[self._scaled] /= samples
        for target, numerator, factor, denominator in self._quotients:
            if settled[denominator] != 0:
                settled[target] += settled[factor] * settled[numerator] / settled[denominator]
        return settled[:_SAMPLES]

    def first_sums(self, size: int) -> Sums:
        sums = np.zeros(size)
        for n in self._carried:
            value = np.asarray(self._variables[n].value, np.float64)
            sums[self._starts[n] : self._starts[n + 1]] = value.reshape(-1)
        return sums

    def carried(self, sums: Sums) -> Sums:
        found = np.zeros_like(sums)
        found[self._places] = sums[self._places] + sums[self._since]
        return found

    def with_pass(self, sums: Sums, passed: Sums) -> Sums:
        found: Sums = sums.copy()
        found[self._since] += passed[self._places]
        return found

    def assign(self, sums: Sums) -> float:
        """Set the metric variables from settled sums, and return the sum of the loss."""
        for n, variable in enumerate(self._variables):
            value = sums[self._starts[n] : self._starts[n + 1]].reshape(variable.shape)
            variable.assign(tf.cast(value, variable.dtype))
        return float(sums[_LOSS])

    def _traced(
        self, n: int, value: Any, loss: LossParts, samples: int, extra: dict[Hashable, Any]
    ) -> Any:
        """Return variable ``n``; what it has of quotients is taken out and travels apart."""
        scale = float(samples) if n in self._by_batch else 1.0
        value = tf.cast(value, tf.float32)
        if value.shape.rank == 0 and len(loss.parts) > 1 and n not in self._summed:
            for name, leaf, slope, numerator in loss.quotients_in(value):
                key = (n, *name)
                value -= slope * tf.cast(leaf, tf.float32)
                extra[key, "factor"], extra[key, "numerator"] = slope * scale, numerator
                part = name[0]
                below = (part, "denominator") if (part, "denominator") in extra else _ONE
                self._quotient(self._starts[n], (key, "numerator"), (key, "factor"), below)
                if scale != 1.0 and not self._is_fixed:
                    self._scaled.append(self._entry((key, "factor")))
        return value * scale

    def _quotient(self, target: int, *names: Hashable) -> None:
        if not self._is_fixed:
            self._quotients.append((target, *map(self._entry, names)))

    def _entry(self, name: Hashable) -> int:
        if isinstance(name, int):
            return name
        return self._entries.setdefault(name, int(self._starts[-1]) + len(self._entries))

    def _tail(self, extra: dict[Hashable, Any]) -> list[Any]:
        """Return the last entries in their order; the first trace has fixed it."""
        if extra.keys() - self._entries.keys():
            raise ProgramError(
                "the loss has masked, weighted or summed terms in validation that it does not have "
                "in training: give it the same terms in both"
            )
        return [extra.get(name, 0.0) for name in self._entries]
