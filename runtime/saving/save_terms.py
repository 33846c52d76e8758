"""The part of a job that its saver needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.format.epoch_metrics import plain_name
from holdfast.checkpoint.upkeep.retention import FEWEST_KEPT, Best, Retention, Wanted
from holdfast.recovery.work_plan import WorkPlan
from holdfast.runtime.errors import ProgramError

_MODES = ("min", "max")


@dataclass(frozen=True, slots=True)
class SaveTerms:
    """The steps at which a job is saved, the fields of its manifests, and its retention.

    ``fields`` are those of a manifest's cursor that are the same for the whole stage, the
    job's identity among them; ``numerics`` are the job's, as JSON.
    """

    work_plan: WorkPlan
    retention: Retention
    fields: Mapping[str, object]
    numerics: dict[str, object]


def wanted_of(keep_every: object, keep_best: object, *, after: int = -1) -> Wanted:
    """Return what a training that begins after the step ``after`` wants to keep.

    Raises:
        ProgramError: an option is not valid; the message names it and the valid values.
    """
    every = None if keep_every is None else _at_least(1, keep_every, "keep_every")
    return Wanted(every, None if keep_best is None else _best_of(keep_best), after)


def retention_of(
    keep: object, wanted: tuple[Wanted, ...], *, forever: frozenset[int] = frozenset()
) -> Retention:
    """Return the retention of a run whose trainings, so far, want to keep what is ``wanted``.

    Raises:
        ProgramError: ``keep`` is not valid; the message names the valid values.
    """
    return Retention(_at_least(FEWEST_KEPT, keep, "keep"), wanted, forever)


def _at_least(least: int, value: object, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ProgramError(f"{name} must be at least {least}, got {value!r}; change the script")
    return value


def _best_of(keep_best: object) -> Best:
    match keep_best:
        case (str(metric), str(mode)) if mode in _MODES:
            return Best(plain_name(metric), is_smaller_better=mode == "min")
    raise ProgramError(
        f'keep_best must be a metric and "min" or "max", such as ("val_loss", "min"), '
        f"got {keep_best!r}; change the script"
    )
