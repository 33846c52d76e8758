"""The terms of a loss, noted while Keras computes it.

The loss of a batch is a sum of terms, and each term is a quotient.  Its numerator is a sum over
samples.  Its denominator is the number of samples, 1, or a sum of its own: of the steps that
a mask leaves, or of sample weights.  Only numerators and denominators can be added over the
microbatches of a batch, not the quotients.

Keras computes quotients.  So each term is cut off from the rest of the loss: the rest gets a
*leaf* with the same value, and the tape sees no way from the leaf back to the term.  Then the
loss can be differentiated term by term.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import keras
import tensorflow as tf


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

    keras.losses.Loss.__call__, keras.layers.Layer.add_loss = call, add
    try:
        yield noted.terms
    finally:
        keras.losses.Loss.__call__, keras.layers.Layer.add_loss = of_loss, add_loss


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
