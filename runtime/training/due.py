"""Callbacks that have still to run: what a checkpoint holds that was made in the middle of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.recovery.work_plan import Work

_DUE = "callbacks due"
"""The field of a manifest's cursor."""


@dataclass(frozen=True, slots=True)
class Due:
    """A commit whose callbacks have still to run: its work, and what a validation has measured."""

    work: Work
    validation: Mapping[str, float] | None

    def into(self, fields: Mapping[str, object]) -> dict[str, object]:
        """Return a manifest's fields with this in them; JSON has no infinity and no NaN."""
        found = {name: value.hex() for name, value in (self.validation or {}).items()}
        due = {"work": self.work.value, "validation": self.validation and found}
        return {**fields, _DUE: due}

    @staticmethod
    def of(cursor: Mapping[str, object]) -> Due | None:
        """Return what a manifest's cursor holds, None if no callbacks are due."""
        due = cursor.get(_DUE)
        if not isinstance(due, Mapping):
            return None
        found = due["validation"]
        values = None if found is None else {n: float.fromhex(v) for n, v in found.items()}
        return Due(Work(due["work"]), values)
