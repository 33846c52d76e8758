"""Which checkpoints a script asks to keep, checked before anything is trained."""

from __future__ import annotations

import numpy as np

from holdfast.checkpoint.format.epoch_metrics import EpochMetrics
from holdfast.checkpoint.upkeep.retention import FEWEST_KEPT, Best, Retention
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import Replica

_MODES = ("min", "max")


def retention_of(keep: object, keep_every: object, keep_best: object) -> Retention:
    """Return the retention that the trainer's three options mean.

    Raises:
        ProgramError: one of them makes no sense; the message says which and what would.
    """
    newest = _at_least(FEWEST_KEPT, keep, "keep")
    every = None if keep_every is None else _at_least(1, keep_every, "keep_every")
    return Retention(newest, every, None if keep_best is None else _best_of(keep_best))


def check_metric(retention: Retention, replica: Replica, *, has_validation: bool) -> None:
    """Refuse a metric that no epoch will have.

    Raises:
        ProgramError: the message names those that an epoch has.
    """
    if retention.best is None:
        return
    # Names do not depend on the sums, and ones can be divided by.
    names = replica.results(np.ones(replica.shape.metrics, np.float64), 1)
    known = EpochMetrics.join(1, 1, names, names if has_validation else {}).values
    if retention.best.metric not in known:
        raise ProgramError(
            f"keep_best asks for {retention.best.metric!r}, but an epoch has "
            f"{', '.join(sorted(known))}; change the script"
        )


def _at_least(least: int, value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ProgramError(f"{name} must be at least {least}, got {value!r}; change the script")
    return value


def _best_of(keep_best: object) -> Best:
    match keep_best:
        case (str(metric), str(mode)) if mode in _MODES:
            return Best(metric, is_smaller_better=mode == "min")
    raise ProgramError(
        f'keep_best must be a metric and "min" or "max", such as ("val/loss", "min"), '
        f"got {keep_best!r}; change the script"
    )
