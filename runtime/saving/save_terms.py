"""What a saver has to know of the job whose state it saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.upkeep.retention import Retention
from holdfast.recovery.work_plan import WorkPlan


@dataclass(frozen=True, slots=True)
class SaveTerms:
    """When a job's state is saved, what the manifest says of the job, and what stays.

    ``identity`` is what must be the same when a checkpoint is restored; ``numerics`` are
    the job's, as JSON.
    """

    work_plan: WorkPlan
    retention: Retention
    identity: Mapping[str, int]
    numerics: dict[str, object]
