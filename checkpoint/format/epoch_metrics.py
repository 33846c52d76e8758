"""The metrics of a state, as its checkpoint's manifest keeps them.

Training measures only at the end of each epoch, so most checkpoints were never measured.
Their manifests hold the metrics of the last epoch before them, and the step at which it
ended.  The metrics describe a checkpoint only if it is of that very step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

VALIDATION_PREFIX = "val_"
_OLD_PREFIX = "val/"
"""Release 0.1 wrote it."""

_FIELD = "epoch"


@dataclass(frozen=True, slots=True)
class EpochMetrics:
    """The metrics of the epoch that ended at ``step``; those of validation begin with ``val_``."""

    epoch: int
    step: int
    values: Mapping[str, float]

    @staticmethod
    def join(
        epoch: int, step: int, training: Mapping[str, float], validation: Mapping[str, float]
    ) -> EpochMetrics:
        """Return both kinds of metrics of one epoch, each under a name of its own."""
        found = {f"{VALIDATION_PREFIX}{name}": value for name, value in validation.items()}
        return EpochMetrics(epoch, step, {**training, **found})

    def into(self, cursor: Mapping[str, object]) -> dict[str, object]:
        """Return a manifest's cursor with these metrics in it; JSON has no infinity and no NaN."""
        finite = {name: value for name, value in self.values.items() if math.isfinite(value)}
        found = {"number": self.epoch, "step": self.step, "metrics": finite}
        return {**cursor, _FIELD: found}

    @staticmethod
    def of(cursor: Mapping[str, object]) -> EpochMetrics | None:
        """Return the metrics that a manifest's cursor holds, None if it holds none."""
        found = cursor.get(_FIELD)
        if not isinstance(found, Mapping) or not isinstance(found.get("metrics"), Mapping):
            return None
        number, step = found.get("number"), found.get("step")
        if not isinstance(number, int) or not isinstance(step, int):
            return None
        measured = {plain_name(name): _finite(value) for name, value in found["metrics"].items()}
        values = {name: value for name, value in measured.items() if value is not None}
        return EpochMetrics(number, step, values)


def plain_name(name: object) -> str:
    """Return the name of a metric as it is called today."""
    text = str(name)
    if text.startswith(_OLD_PREFIX):
        return VALIDATION_PREFIX + text.removeprefix(_OLD_PREFIX)
    return text


def _finite(value: object) -> float | None:
    """Return a number as a finite float, None for anything else."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON has integers of any length
        return None
    return number if math.isfinite(number) else None
