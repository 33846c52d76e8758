"""The part of a job that its saver needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.checkpoint.upkeep.retention import Retention
from holdfast.recovery.work_plan import WorkPlan


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
