"""A step tried on a batch and on its parts, before the first microbatch.

A script updates some metrics with values of single samples, and others with one value of the batch.
Both are right for a batch, but their sums over microbatches differ.  The trial tells which is
which, for numbers of the logs too.  It also tells whether the gradients of the parts add up to
those of the batch, as means or as sums over samples.  And it tells what becomes of state beside the
metrics.  All samples draw the same random numbers in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from holdfast.runtime.model.captured_step import CapturedStep, Step, record
from holdfast.runtime.model.custom_vector import Measured, MeasuredValues
from holdfast.runtime.model.kinds import StateKind, StateTrial, leaf_metrics, sums_tried_again
from holdfast.runtime.model.model_call import Batch
from holdfast.runtime.model.model_rules import computes_in_float32
from holdfast.runtime.model.step_logs import StepLogs

MOST_SAMPLES = 16
"""A batch that mixes its samples shows it with few of them."""

_EXACT, _ROUGH = 1e-2, 2e-1
"""Tolerances in float32, and with layers that compute in 16 bits."""


_SCALES = (1.0, 0.1, 0.01)
"""To these scales weights are moved if the first samples have no gradient, as under a hinge."""

_OF_STATE = 0.2
"""State agrees more nearly than gradients, as a part of the tolerance."""


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


@dataclass(frozen=True, slots=True)
class _Trial:
    """What a step does with some samples."""

    measured: Measured
    gradients: list[Any]
    """Those of each update in one vector."""
    state: dict[str, Any]
    """Other variables that the step assigns, by path."""


def probe(step: Step, batch: Batch) -> Probe:
    """Try a step on some samples, and on two parts of them."""
    whole, *parts = _cut(batch)
    tried, one, other = (_try(step, some) for some in (whole, *parts))
    measured = MeasuredValues.of(
        leaf_metrics(step.model.metrics),
        tried.measured,
        (one.measured, other.measured),
        _tolerance(step.model),
    )
    states = _states(step, parts[0], tried, (one, other)) if tried.state else {}
    for scale in _SCALES:
        if all(_norm(gradients) > 0.0 for gradients in tried.gradients):
            break
        with _moved(step.model.trainable_variables, scale):
            tried, one, other = (_try(step, some) for some in (whole, *parts))
    return _of_gradients(tried, (one, other), (measured, states), _tolerance(step.model))


def _of_gradients(
    whole: _Trial,
    parts: tuple[_Trial, _Trial],
    known: tuple[MeasuredValues, dict[str, StateKind]],
    tolerance: float,
) -> Probe:
    one, other = parts
    share = one.measured.samples / whole.measured.samples
    apart, summed = [], set()
    for i, gradients in enumerate(whole.gradients):
        g1, g2 = one.gradients[i], other.gradients[i]
        mean, added = share * g1 + (1 - share) * g2, g1 + g2
        limit = tolerance * _norm(gradients)
        if _norm(gradients - mean) > limit >= _norm(gradients - added):
            summed.add(i)
        apart.append(added if i in summed else mean)
    vector, other_vector = (np.concatenate([np.zeros(0), *g]) for g in (whole.gradients, apart))
    measured, states = known
    return Probe(
        measured,
        _norm(vector),
        _norm(other_vector),
        _norm(vector - other_vector),
        tolerance,
        states,
        frozenset(summed),
    )


@contextmanager
def _moved(variables: Sequence[Any], scale: float) -> Iterator[None]:
    """Move weights for a while: without a gradient nothing tells a sum from a mean."""
    before = [np.asarray(variable.value) for variable in variables]
    random = np.random.default_rng(0)
    try:
        for variable, value in zip(variables, before, strict=True):
            moved = value + (0.1 + np.abs(value)) * random.normal(size=value.shape)
            variable.value.assign(tf.cast(scale * moved, variable.dtype))
        yield
    finally:
        for variable, value in zip(variables, before, strict=True):
            variable.value.assign(value)


def _states(
    step: Step, part: Batch, whole: _Trial, parts: tuple[_Trial, _Trial]
) -> dict[str, StateKind]:
    """Return what becomes of state; ``part`` are the samples of the first of the parts."""
    twice = _try(step, _map(lambda t: tf.concat([t, t], 0), part))
    kinds = dict(_kinds(step.model, whole, parts, twice))
    return sums_tried_again(
        kinds,
        step.model.variables,
        parts[0].state,
        lambda values: _try(step, part, values).state,
    )


def _kinds(
    model: Any, whole: _Trial, parts: tuple[_Trial, _Trial], twice: _Trial
) -> Iterator[tuple[str, StateKind]]:
    before = {v.path: np.asarray(v.value, np.float64) for v in model.variables}
    for path, value in whole.state.items():
        if all(path in of_trial for of_trial in (before, twice.state, *(p.state for p in parts))):
            first, second = (
                (p.measured.samples / whole.measured.samples, p.state[path]) for p in parts
            )
            of_path = (before[path], value, (first, second), twice.state[path])
            yield path, StateTrial(*of_path, _OF_STATE * _tolerance(model)).kind


def untried(step: Step) -> Probe:
    """Return what holds for a step whose batches are never cut: nothing is weighted."""
    nothing = MeasuredValues((False,) * len(step.model.metrics_variables))
    return Probe(nothing, 0.0, 0.0, 0.0, _tolerance(step.model))


def _tolerance(model: Any) -> float:
    return _EXACT if computes_in_float32(model) else _ROUGH


def _try(step: Step, batch: Batch, values: Sequence[tuple[Any, Any]] = ()) -> _Trial:
    captured = step.capture(batch, None, record, values)
    gradients = [_flat(call.gradients) for call, _ in captured.calls]
    metrics = [np.asarray(captured.added(v), np.float64) for v in captured.metrics]
    return _Trial(
        Measured(float(batch.samples), metrics, dict(_shown(step, captured))),
        gradients,
        {v.path: np.asarray(captured.value(v), np.float64) for v in _state(step, captured)},
    )


def _shown(step: Step, captured: CapturedStep) -> Iterator[tuple[str, Any]]:
    """Yield the numbers of the logs."""
    logs = StepLogs.of(step.model, captured.logs, captured.results, step.name)
    for number, tensor in zip(logs.numbers, logs.numbers_in(captured.logs), strict=True):
        yield number.name, np.asarray(tensor, np.float64)


def _flat(gradients: Sequence[Any]) -> Any:
    arrays = [np.asarray(tf.convert_to_tensor(gradient), np.float64) for gradient in gradients]
    return np.concatenate([np.zeros(0), *(array.reshape(-1) for array in arrays)])


def _state(step: Step, captured: CapturedStep) -> Iterator[Any]:
    ours = {id(v) for v in (*captured.metrics, *step.generators)}
    for variable, _ in captured.assigned.values():
        if id(variable) not in ours:
            yield variable


def _cut(batch: Batch) -> Iterator[Batch]:
    """Yield some samples, and two uneven parts of them; a single sample is taken twice."""
    if batch.samples == 1:
        yield _map(lambda t: tf.concat([t, t], 0), batch)
        yield batch
        yield batch
        return
    samples = min(batch.samples, MOST_SAMPLES)
    first = max(1, samples // 3)
    yield _map(lambda t: t[:samples], batch)
    yield _map(lambda t: t[:first], batch)
    yield _map(lambda t: t[first:samples], batch)


def _map(change: Any, batch: Batch) -> Batch:
    parts = (batch.x, batch.y, batch.weights)
    return Batch(
        *(keras.tree.map_structure(lambda t: t if t is None else change(t), p) for p in parts)
    )


def _norm(vector: Any) -> float:
    return float(np.linalg.norm(vector))
