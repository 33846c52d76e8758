"""Which variables of metrics hold values of whole batches, found out by trials.

Most metrics add up values of single samples.  Others have one value of a batch, such as a
function that returns the precision of a batch: Keras shows its mean over the batches.  That of
a batch in parts is the mean over the parts, weighted by samples.  It is that of the whole batch
if the value is a mean over samples itself, and another number if it is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Values = Mapping[str, npt.NDArray[np.float64]]
"""Variables by path, updated from zero with some samples."""

_NEAR = 1e-3
"""Tolerance, as a part of the values."""


@dataclass(frozen=True, slots=True)
class MetricKinds:
    """What is known of a model's metrics."""

    by_batch: frozenset[str] = frozenset()
    """Paths of variables that count batches, not samples."""
    of_parts: tuple[str, ...] = ()
    """Metrics whose value of a batch need not be the mean of those of its parts."""
    summed: frozenset[str] = frozenset()
    """Paths of variables that add up sums of batches, beside a count of batches."""

    def notices(self, left_out: Iterable[str] = ()) -> Iterator[str]:
        """Yield a line for each metric that may differ from that of plain Keras, if it is shown."""
        for name in self.of_parts:
            if name in left_out:
                continue
            yield (
                f"metric {name!r} is one value of a batch, not of its samples: it shows the mean "
                "of its microbatches, and may differ from plain Keras; a metric class that adds "
                "up over samples agrees, and --microbatches 1 keeps each batch whole"
            )


@dataclass(frozen=True, slots=True)
class LeafMetric:
    """A metric that holds variables; those of metrics within it belong to these."""

    name: str
    variables: tuple[Any, ...]


def leaf_metrics(metrics: Iterable[Any]) -> Iterator[LeafMetric]:
    """Yield metrics and those within them, in the order of their variables."""
    for metric in metrics:
        inner: tuple[Any, ...] = tuple(
            getattr(metric, "metrics", ()) or getattr(metric, "_metrics", ())
        )
        within = {id(v) for found in inner for v in found.variables}
        own = tuple(v for v in metric.variables if id(v) not in within)
        if own:
            yield LeafMetric(metric.name, own)
        yield from leaf_metrics(inner)


@dataclass(frozen=True, slots=True)
class _Metric:
    """One metric, and its variables by what became of them with each sample twice."""

    name: str
    same: Sequence[str]
    doubled: Sequence[str]
    other: Sequence[str]
    nothing: Sequence[str]
    """Those that the samples have left at zero, or not finite, which tells nothing."""

    @staticmethod
    def of(metric: LeafMetric, once: Values, twice: Values) -> _Metric:
        found: dict[str, list[str]] = {"same": [], "doubled": [], "other": [], "nothing": []}
        for path in (variable.path for variable in metric.variables):
            if path in once:
                found[_change(once[path], twice[path])].append(path)
        return _Metric(metric.name, **found)

    @property
    def by_batch(self) -> list[str]:
        """Variables that count batches; what tells nothing by itself goes with the others."""
        if not (self.same or self.other):
            return []
        unclear = [] if self.doubled else [*self.other, *self.nothing]
        return [*self.same, *unclear]


def metric_kinds(
    metrics: Iterable[Any],
    once: Values,
    twice: Values,
    try_more: Callable[[], tuple[Values, Values]],
) -> MetricKinds:
    """Return what becomes of the metrics over the parts of a batch.

    Args:
        metrics: those of a model.
        once: their variables after some samples.
        twice: their variables after each of these twice.
        try_more: returns them after other samples, and after both; called at need only.
    """
    tried = [_Metric.of(metric, once, twice) for metric in leaf_metrics(metrics)]
    suspects = [metric for metric in tried if metric.by_batch or metric.other]
    if not suspects:
        return MetricKinds()
    other, both = try_more()
    return MetricKinds(
        frozenset(path for metric in suspects for path in metric.by_batch),
        tuple(
            dict.fromkeys(
                metric.name
                for metric in suspects
                if metric.other or not all(_is_mean(once, other, both, p) for p in metric.by_batch)
            )
        ),
        frozenset(path for metric in suspects if metric.same for path in metric.doubled),
    )


def _change(once: npt.NDArray[np.float64], twice: npt.NDArray[np.float64]) -> str:
    is_finite = bool(np.isfinite([once, twice]).all())
    if not is_finite or not (np.any(once) or np.any(twice)):
        return "nothing"
    if np.allclose(once, twice, rtol=_NEAR):
        return "same"
    return "doubled" if np.allclose(2 * once, twice, rtol=_NEAR) else "other"


def _is_mean(one: Values, other: Values, both: Values, path: str) -> bool:
    """Return whether the value of both samples is the mean; zeros do not tell."""
    if path not in other or path not in both or not np.any(both[path]):
        return False
    if not np.isfinite([one[path], other[path], both[path]]).all():
        return False
    mean = (one[path] + other[path]) / 2
    return bool(np.allclose(mean, both[path], rtol=_NEAR, atol=_NEAR * np.abs(mean).max()))
