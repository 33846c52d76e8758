"""A step tried on a batch and on its parts, before the first microbatch.

A script updates some metrics with values of single samples, and others with one value of the
batch.  Both are right for a batch, but their sums over microbatches differ.  The trial tells
which is which.  It also tells whether the gradients of the parts add up to those of the batch.
Random draws are held still in it, and normalisation of batches is off.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from holdfast.runtime.custom.captured_step import Step, record
from holdfast.runtime.model.tensors import Batch

MOST_SAMPLES = 16
"""A batch that mixes its samples shows it with few of them."""

_TINY = 1e-12

_EXACT, _ROUGH = 1e-2, 2e-1
"""Tolerances in float32, and with layers that compute in 16 bits."""


@dataclass(frozen=True, slots=True)
class Probe:
    """What the trial found."""

    weighted: tuple[bool, ...]
    """For each metric variable whether it is updated with values of the whole batch."""
    whole: float
    """The norm of the gradients of the batch."""
    parts: float
    """The norm of the mean gradients of its parts."""
    difference: float
    """The norm of the difference between the two."""
    tolerance: float

    @property
    def mixes_samples(self) -> bool:
        """Whether the gradients of a batch are not those of its parts, added up."""
        return self.difference > self.tolerance * max(self.whole, self.parts)


def probe(step: Step, batch: Batch) -> Probe:
    """Try a step on some samples, and on two parts of them."""
    (all_of_them, size), *parts = [(b, float(b.samples)) for b in _cut(batch)]
    with _no_normalisation(step.model):
        gradients, metrics = _measure(step, all_of_them)
        (g1, m1), (g2, m2) = (_measure(step, part) for part, _ in parts)
    n1, n2 = (n / size for _, n in parts)
    weighted = []
    for metric in _grouped(step.model):
        added = sum(_distance(metrics[i], m1[i] + m2[i]) for i in metric)
        mean = sum(_distance(metrics[i], n1 * m1[i] + n2 * m2[i]) for i in metric)
        weighted += [bool(mean < added)] * len(metric)
    apart = n1 * g1 + n2 * g2
    whole, mean, difference = (_norm(v) for v in (gradients, apart, gradients - apart))
    return Probe(tuple(weighted), whole, mean, difference, _tolerance(step.model))


def untried(step: Step) -> Probe:
    """Return what holds for a step whose batches are never cut: nothing is weighted."""
    return Probe(
        (False,) * len(step.model.metrics_variables), 0.0, 0.0, 0.0, _tolerance(step.model)
    )


def _tolerance(model: Any) -> float:
    layers = model._flatten_layers()
    is_exact = all(getattr(layer, "compute_dtype", "float32") == "float32" for layer in layers)
    return _EXACT if is_exact else _ROUGH


def _measure(step: Step, batch: Batch) -> tuple[Any, list[Any]]:
    """Return all gradients in one vector, and the metrics from zero."""
    captured = step.capture(batch, None, record)
    gradients = [
        np.asarray(tf.convert_to_tensor(gradient), np.float64).reshape(-1)
        for call, _ in captured.calls
        for gradient in call.gradients
    ]
    metrics = [np.asarray(captured.value(v), np.float64) for v in captured.metrics]
    return np.concatenate([np.zeros(0), *gradients]), metrics


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


def _grouped(model: Any) -> Iterator[list[int]]:
    """Yield the indexes of each metric's variables."""
    start = 0
    for metric in model.metrics:
        stop = start + len(metric.variables)
        yield list(range(start, stop))
        start = stop


def _norm(vector: Any) -> float:
    return float(np.linalg.norm(vector))


def _distance(found: Any, expected: Any) -> float:
    scale = np.abs(found).sum() + np.abs(expected).sum() + _TINY
    return float(np.abs(found - expected).sum() / scale)


@contextmanager
def _no_normalisation(model: Any) -> Iterator[None]:
    """Let layers that normalise a batch use their moving statistics, as when they are frozen."""
    layers = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.BatchNormalization) and layer.trainable
    ]
    try:
        for layer in layers:
            layer.trainable = False
        yield
    finally:
        for layer in layers:
            layer.trainable = True
