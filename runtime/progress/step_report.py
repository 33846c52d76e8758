"""A worker's word on its progress: step, epoch, metrics so far, and the next save.

The first worker writes it into its heartbeat page a few times a second, and its agent
reads it there.  Nobody waits for anybody, and no message is queued.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from holdfast.runtime.system.heartbeat import MOST_PROGRESS_BYTES

SILENT, LIVE, LINES = range(3)
"""The values of Keras's ``verbose``: nothing, a line that moves, a line for each epoch."""


UNKNOWN = 0
"""Steps of a training that goes on until its data end, or until a callback ends it."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The progress of a training at ``now``, in seconds of the host's monotonic clock.

    Epochs count from 1, and so do stages: the trainings of a script.  ``steps`` and ``epochs``
    are those that the script asks for; it may stop before them, and steps may be unknown.
    ``metrics`` are those of the epoch so far.  A next save is known by its step, by its moment,
    or by both: then the earlier one counts.
    """

    now: float
    step: int
    steps: int
    epoch: int
    epochs: int
    step_of_epoch: int
    steps_per_epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    verbose: int = LIVE
    stage: int = 1
    next_save_step: int | None = None
    next_save_at: float | None = None

    def encode(self) -> bytes:
        """Return the report as JSON that fits into a heartbeat page; it loses metrics if need be.

        The loss comes first, and stays longest.
        """
        metrics = list(self.metrics.items())
        while True:
            shown = dataclasses.replace(self, metrics=dict(metrics))
            content = json.dumps(dataclasses.asdict(shown)).encode()
            if len(content) <= MOST_PROGRESS_BYTES:
                return content
            metrics = metrics[: len(metrics) // 2]

    @staticmethod
    def decode(content: bytes) -> StepReport | None:
        """Return the report that ``encode`` wrote, None if it is none."""
        try:
            return StepReport.of(json.loads(content))
        except ValueError:  # empty, or rewritten while it was read
            return None

    @staticmethod
    def of(fields: object) -> StepReport | None:
        """Return the report with these fields, None if one is missing or makes no sense."""
        if not isinstance(fields, dict):
            return None
        given = {name: fields.get(name, _DEFAULTS.get(name)) for name in _FIELDS}
        if not all(is_sound(given[name]) for name, is_sound in _FIELDS.items()):
            return None
        return StepReport(**given)  # type: ignore[arg-type]  # _FIELDS has looked at each

    def to_json(self) -> dict[str, object]:
        """Return the fields as a JSON object."""
        return dataclasses.asdict(self)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_moment(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


def is_metrics(value: object) -> TypeGuard[Mapping[str, float]]:
    """Return whether ``value`` is a mapping of names to numbers, which may be infinite."""
    return isinstance(value, dict) and all(
        isinstance(name, str) and isinstance(number, (int, float)) for name, number in value.items()
    )


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "now": _is_moment,
    "step": _is_count,
    "steps": _is_count,
    "epoch": _is_count,
    "epochs": _is_count,
    "step_of_epoch": _is_count,
    "steps_per_epoch": _is_count,
    "metrics": is_metrics,
    "verbose": _is_count,
    "stage": _is_count,
    "next_save_step": lambda value: value is None or _is_count(value),
    "next_save_at": lambda value: value is None or _is_moment(value),
}

_DEFAULTS = {"stage": 1, "verbose": LIVE}
"""What an older holdfast did not tell."""
