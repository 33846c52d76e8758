"""The metrics part of a contribution: the loss, metric variables, and what they are divided by.

The part is laid out as::

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

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.loss import Kind, LossParts
from holdfast.runtime.model.replica import EpochSums, Sums

_LOSS = 0


@dataclass(frozen=True, slots=True)
class _Quotient:
    """An entry to which ``factor * numerator / denominator`` is added when a batch is settled."""

    target: int
    numerator: int
    factor: int | None
    """Entry of the factor, None for the samples of the batch."""
    denominator: int | None
    """Entry of the denominator, None for 1."""


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
        self._quotients: list[_Quotient] = []
        self._scaled = [
            i for n in self._by_batch for i in range(self._starts[n], self._starts[n + 1])
        ]
        self._carried = tuple(carried)
        self._places = [
            i for n in self._carried for i in range(self._starts[n], self._starts[n + 1])
        ]
        self._since = [self._entry(("carried", place)) for place in self._places]
        self._is_fixed = False

    @property
    def size(self) -> int:
        """Floats of the metrics part."""
        return int(self._starts[-1]) + len(self._entries)

    @property
    def is_additive(self) -> bool:
        """Whether all entries are sums over samples as they are."""
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
            if part.kind is not Kind.MEAN:
                extra[name, "numerator"] = numerator
            if part.kind is Kind.RATIO:
                extra[name, "denominator"] = part.denominator
                self._quotient(_LOSS, (name, "numerator"), None, (name, "denominator"))
            elif part.kind is Kind.SUM:
                self._quotient(_LOSS, (name, "numerator"), None, None)
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
        """Return what the sums over one batch of ``samples`` samples add to those of an epoch."""
        if self.is_additive:
            return sums
        settled: Sums = sums.copy()
        settled[self._scaled] /= samples
        for quotient in self._quotients:
            divisor = 1.0 if quotient.denominator is None else settled[quotient.denominator]
            factor = samples if quotient.factor is None else settled[quotient.factor]
            if divisor != 0:
                settled[quotient.target] += factor * settled[quotient.numerator] / divisor
        return settled

    def first_sums(self, size: int) -> Sums:
        """Return the sums with which a training begins: what carried variables hold by now."""
        sums = np.zeros(size)
        for n in self._carried:
            value = np.asarray(self._variables[n].value, np.float64)
            sums[self._starts[n] : self._starts[n + 1]] = value.reshape(-1)
        return sums

    def carried(self, sums: Sums) -> Sums:
        """Return the sums with which the next pass begins, from those of an epoch."""
        found = np.zeros_like(sums)
        found[self._places] = sums[self._places] + sums[self._since]
        return found

    def with_pass(self, sums: Sums, passed: Sums) -> Sums:
        """Return the sums of an epoch, with those of a pass over validation data to be carried."""
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
                below = (part, "denominator") if (part, "denominator") in extra else None
                self._quotient(self._starts[n], (key, "numerator"), (key, "factor"), below)
                if scale != 1.0:
                    self._scaled_entry((key, "factor"))
        return value * scale

    def _quotient(
        self, target: int, numerator: Hashable, factor: Hashable, denominator: Hashable
    ) -> None:
        if not self._is_fixed:
            entry = self._entry
            self._quotients.append(
                _Quotient(
                    target,
                    entry(numerator),
                    None if factor is None else entry(factor),
                    None if denominator is None else entry(denominator),
                )
            )

    def _scaled_entry(self, name: Hashable) -> None:
        if not self._is_fixed:
            self._scaled.append(self._entry(name))

    def _entry(self, name: Hashable) -> int:
        return self._entries.setdefault(name, int(self._starts[-1]) + len(self._entries))

    def _tail(self, extra: dict[Hashable, Any]) -> list[Any]:
        """Return the last entries in their order; the first trace has fixed it."""
        if extra.keys() - self._entries.keys():
            raise ProgramError(
                "the loss has masked, weighted or summed terms in validation that it does not have "
                "in training: give it the same terms in both"
            )
        return [extra.get(name, 0.0) for name in self._entries]
