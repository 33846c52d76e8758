"""The logs that a script's own step returns, as ``fit`` shows them.

A value is the result of a metric, or a number of the batch such as a loss.  Results of
metrics are computed from the sums of their variables.  Of a number, ``fit`` shows that of
the last batch.  For a batch in parts it is the mean over the parts, weighted by samples, or
their sum, as `step_probe` has found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from holdfast.runtime.errors import ProgramError


@dataclass(frozen=True, slots=True)
class Result:
    """A value of the logs that a metric gives; ``path`` leads into a result of several values."""

    name: str
    metric: Any
    path: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Number:
    """A value of the logs that belongs to the batch; it has ``size`` floats."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of floats."""
        return int(np.prod(self.shape, dtype=int))


@dataclass(frozen=True, slots=True)
class StepLogs:
    """What the logs of a step consist of; ``all_results`` as in ``Model.get_metrics_result``."""

    model: Any
    entries: tuple[Result | Number, ...]
    all_results: bool

    @staticmethod
    def of(model: Any, logs: Any, noted: dict[int, Any], step: str) -> StepLogs:
        """Return the kinds of the values of ``logs``.

        Raises:
            ProgramError: the step returns no dictionary.
        """
        if not isinstance(logs, dict):
            raise ProgramError(
                f"{step} returns {_described(logs)}, not its logs: return a dictionary such as "
                '{"loss": self.loss_tracker.result()}'
            )
        entries = tuple(_entry(name, value, noted) for name, value in _flat(logs))
        known = set(model.get_metrics_result())
        return StepLogs(model, entries, all_results=known == set(logs))

    @property
    def numbers(self) -> tuple[Number, ...]:
        """The values that belong to the batch, if they are shown."""
        if self.all_results:
            return ()
        return tuple(entry for entry in self.entries if isinstance(entry, Number))

    def numbers_in(self, logs: Any) -> list[Any]:
        """Return the tensors of ``numbers`` in the logs of one tracing."""
        found = dict(_flat(logs))
        return [found[number.name] for number in self.numbers]

    def shown(self, floats: npt.NDArray[Any]) -> dict[str, float]:
        """Return the logs, from the metrics' variables and the floats of ``numbers``."""
        if self.all_results:
            return dict(scalars(self.model.get_metrics_result()))
        shown: dict[str, float] = {}
        start = 0
        for entry in self.entries:
            if isinstance(entry, Result):
                value = entry.metric.result()
                for key in entry.path:
                    value = value[key]
            else:
                value = np.reshape(floats[start : start + entry.size], entry.shape)
                start += entry.size
            shown |= scalars({entry.name: value})
        return shown


@contextmanager
def noted_results(metrics: Iterable[Any]) -> Iterator[dict[int, Any]]:
    """Note which tensors are results of metrics while a step is traced."""
    noted: dict[int, Any] = {}
    wrapped = list(metrics)
    try:
        for metric in wrapped:
            vars(metric)["result"] = _noting(metric, noted)
        yield noted
    finally:
        for metric in wrapped:
            vars(metric).pop("result", None)


def scalars(logs: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yield the numbers of logs; a value of several numbers gives ``name/0``, ``name/1``..."""
    for name, value in _flat(logs):
        values = np.asarray(value, dtype=np.float64)
        for i, number in enumerate(values.reshape(-1).tolist()):
            yield f"{name}/{i}" if values.ndim else name, number


def _described(logs: Any) -> str:
    if logs is None:
        return "nothing"
    return "a tensor" if keras.ops.is_tensor(logs) else f"an object of type {type(logs).__name__}"


def _noting(metric: Any, noted: dict[int, Any]) -> Any:
    original = metric.result

    def result(*arguments: Any, **named: Any) -> Any:
        value = original(*arguments, **named)
        for path, leaf in keras.tree.flatten_with_path(value):
            noted[id(leaf)] = (metric, path, leaf)  # the leaf is kept, so that its id stays its own
        return value

    return result


def _entry(name: str, value: Any, noted: dict[int, Any]) -> Result | Number:
    if id(value) in noted:
        metric, path, _ = noted[id(value)]
        return Result(name, metric, tuple(path))
    return Number(name, tuple(getattr(value, "shape", ())))


def _flat(logs: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; a dictionary within is shown as its values, as ``fit`` does."""
    for name, value in logs.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield name, value
