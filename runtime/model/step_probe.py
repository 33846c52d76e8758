"""A step tried on a batch and on its parts, before the first microbatch.

A script updates some metrics with values of single samples, and others with one value of the batch.
Both are right for a batch, but their sums over microbatches differ.  The trial tells which is
which, for numbers of the logs too.  It also tells whether the gradients of the parts add up to
those of the batch, as means or as sums over samples.  And it tells what becomes of state beside the
metrics.  All samples draw the same random numbers in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from holdfast.runtime.model.captured_step import Step, record
from holdfast.runtime.model.kinds import StateKind, leaf_metrics, norm, state_kinds
from holdfast.runtime.model.model_call import Batch
from holdfast.runtime.model.model_rules import computes_in_float32, unchanged
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.model.step_logs import StepLogs

MOST_SAMPLES = 16
"""A batch that mixes its samples shows it with few of them."""

_EXACT, _ROUGH = 1e-2, 2e-1
"""Tolerances in float32, and with layers that compute in 16 bits."""


_SCALES = (1.0, 0.1, 0.01)
"""To these scales weights are moved if the first samples have no gradient, as under a hinge."""

_TINY = 1e-12

_OF_STATE = 0.2
"""State agrees more nearly than gradients, as a part of the tolerance."""


@dataclass(frozen=True, slots=True)
class Trial:
    """What a step does with some samples."""

    samples: float
    metrics: list[Any]
    """Metric variables, updated from zero."""
    numbers: dict[str, Any]
    """Numbers of the logs, by name."""
    gradients: list[Any] = field(default_factory=list)
    """Those of each update in one vector."""
    state: dict[str, Any] = field(default_factory=dict)
    """Other variables that the step assigns, by path."""


@dataclass(frozen=True, slots=True)
class MeasuredValues:
    """How the values of a batch follow from those of its parts."""

    weighted: tuple[bool, ...]
    """For each metric variable whether it is updated with values of the whole batch.

    These are weighted by the microbatch's share of its batch, as numbers that are no sums.
    """
    odd_metrics: tuple[str, ...] = ()
    """Metrics that are neither sums nor means."""
    summed_numbers: frozenset[str] = frozenset()
    """Numbers of the logs that are sums over samples."""
    odd_numbers: tuple[str, ...] = ()
    """Numbers that are neither sums nor means, such as the norm of a gradient."""

    @staticmethod
    def of(
        metrics: Iterable[Any], whole: Trial, parts: tuple[Trial, Trial], tolerance: float
    ) -> MeasuredValues:
        """Return what was found with a batch and with two parts of it.

        The variables of one metric belong together.
        """
        one, other = parts
        share, other_share = (part.samples / whole.samples for part in parts)
        weighted: list[bool] = []
        odd_metrics: list[str] = []
        summed: list[str] = []
        odd: list[str] = []
        for metric in metrics:
            own = slice(len(weighted), len(weighted) + len(metric.variables))
            values = list(zip(*(of.metrics[own] for of in (whole, *parts)), strict=True))
            added = sum(_distance(m, m1 + m2) for m, m1, m2 in values)
            mean = sum(_distance(m, share * m1 + other_share * m2) for m, m1, m2 in values)
            weighted += [mean < added] * len(values)
            if min(mean, added) > tolerance * len(values):
                odd_metrics.append(metric.name)
        for name, number in whole.numbers.items():
            n1, n2 = one.numbers[name], other.numbers[name]
            is_finite = all(np.isfinite(value).all() for value in (number, n1, n2))
            if is_finite and _distance(number, share * n1 + other_share * n2) > tolerance:
                is_sum = _distance(number, n1 + n2) <= tolerance
                (summed if is_sum else odd).append(name)
        return MeasuredValues(tuple(weighted), tuple(odd_metrics), frozenset(summed), tuple(odd))

    def notices(self, step: str) -> Iterator[str]:
        """Yield a line for each value that microbatches cannot measure apart."""
        for name in self.odd_metrics:
            yield (
                f"metric {name!r} of {step} is neither a sum nor a mean over samples: it shows "
                "what its microbatches add up to; --microbatches 1 keeps each batch whole"
            )
        for name in self.odd_numbers:
            yield (
                f"{name!r} in the logs of {step} is neither a mean nor a sum over samples: it "
                "shows the mean of its microbatches; --microbatches 1 keeps each batch whole"
            )


def _distance(found: Any, expected: Any) -> float:
    scale = np.abs(found).sum() + np.abs(expected).sum() + _TINY
    return float(np.abs(found - expected).sum() / scale)


@dataclass(frozen=True, slots=True)
class Probe:
    """What the trial found."""

    measured: MeasuredValues
    """How metrics and numbers of the logs follow from those of the parts."""
    whole: float
    """The norm of the gradients of the batch."""
    parts: float
    """The norm of the gradients of its parts, put together."""
    difference: float
    """The norm of the difference between the two."""
    tolerance: float
    states: dict[str, StateKind] = field(default_factory=dict)
    """What becomes of state beside the metrics over the parts of a batch, by path."""
    summed: frozenset[int] = frozenset()
    """Updates whose gradients are sums over samples, not means, by their number."""

    def kind_of(self, variable: Any) -> StateKind:
        """Return what becomes of a variable over the parts of a batch."""
        return self.states.get(variable.path, StateKind.MEAN)

    def weight(self, update: int, samples: Any) -> Any:
        """Return how often gradients of some samples count: once if they are sums."""
        return 1.0 if update in self.summed else samples

    @property
    def mixes_samples(self) -> bool:
        """Whether the gradients of a batch are not those of its parts, added up."""
        return self.difference > self.tolerance * max(self.whole, self.parts)


def probe(step: Step, first: Microbatch) -> Probe:
    """Try a step on some samples of a microbatch, and on two parts of them."""
    *batches, twice = [Batch.of(first.rows(rows)) for rows in _cuts(first.samples)]
    whole, one, other = (_try(step, batch) for batch in batches)
    tolerance = _tolerance(step.model)
    metrics = leaf_metrics(step.model.metrics)
    measured = MeasuredValues.of(metrics, whole, (one, other), tolerance)
    states = {}
    if whole.state:
        states = state_kinds(
            step.model.variables,
            whole.state,
            [(part.samples / whole.samples, part.state) for part in (one, other)],
            _try(step, twice).state,
            _OF_STATE * tolerance,
            lambda values: _try(step, batches[1], values).state,
        )
    for scale in _SCALES:
        if all(norm(gradients) > 0.0 for gradients in whole.gradients):
            break
        with _moved(step.model.trainable_variables, scale):
            whole, one, other = (_try(step, batch) for batch in batches)
    return _of_gradients(whole, (one, other), (measured, states), tolerance)


def _of_gradients(
    whole: Trial,
    parts: tuple[Trial, Trial],
    known: tuple[MeasuredValues, dict[str, StateKind]],
    tolerance: float,
) -> Probe:
    one, other = parts
    share = one.samples / whole.samples
    apart, summed = [], set()
    for i, gradients in enumerate(whole.gradients):
        g1, g2 = one.gradients[i], other.gradients[i]
        mean, added = share * g1 + (1 - share) * g2, g1 + g2
        limit = tolerance * norm(gradients)
        if norm(gradients - mean) > limit >= norm(gradients - added):
            summed.add(i)
        apart.append(added if i in summed else mean)
    vector, other_vector = (np.concatenate([np.zeros(0), *g]) for g in (whole.gradients, apart))
    measured, states = known
    return Probe(
        measured,
        norm(vector),
        norm(other_vector),
        norm(vector - other_vector),
        tolerance,
        states,
        frozenset(summed),
    )


@contextmanager
def _moved(variables: Sequence[Any], scale: float) -> Iterator[None]:
    """Move weights for a while: without a gradient nothing tells a sum from a mean."""
    random = np.random.default_rng(0)
    with unchanged(variables):
        for variable in variables:
            value = np.asarray(variable.value)
            moved = value + (0.1 + np.abs(value)) * random.normal(size=value.shape)
            variable.value.assign(tf.cast(scale * moved, variable.dtype))
        yield


def untried(step: Step) -> Probe:
    """Return what holds for a step whose batches are never cut: nothing is weighted."""
    nothing = MeasuredValues((False,) * len(step.model.metrics_variables))
    return Probe(nothing, 0.0, 0.0, 0.0, _tolerance(step.model))


def _tolerance(model: Any) -> float:
    return _EXACT if computes_in_float32(model) else _ROUGH


def _try(step: Step, batch: Batch, values: Sequence[tuple[Any, Any]] = ()) -> Trial:
    captured = step.capture(batch, None, record, values)
    logs = StepLogs.of(step.model, captured.logs, captured.results, step.name)
    numbers = zip(logs.numbers, logs.numbers_in(captured.logs), strict=True)
    return Trial(
        float(batch.samples),
        [np.asarray(captured.added(v), np.float64) for v in captured.metrics],
        {number.name: np.asarray(tensor, np.float64) for number, tensor in numbers},
        [_flat(call.gradients) for call, _ in captured.calls],
        {v.path: np.asarray(captured.value(v), np.float64) for v in captured.state},
    )


def _flat(gradients: Sequence[Any]) -> Any:
    arrays = [np.asarray(tf.convert_to_tensor(gradient), np.float64) for gradient in gradients]
    return np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays)])


def _cuts(samples: int) -> tuple[list[int], ...]:
    """Return the numbers of some samples, of two uneven parts of them, and twice the first part.

    A single sample is taken twice.
    """
    if samples == 1:
        return [0, 0], [0], [0], [0, 0]
    some = list(range(min(samples, MOST_SAMPLES)))
    first = max(1, len(some) // 3)
    return some, some[:first], some[first:], 2 * some[:first]
