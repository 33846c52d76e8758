"""Damaged steps that were moved aside: the newest few are kept, since a mend may need them.

Without a bound a disk that rots fills up with what it has damaged, until saves fail.
Whose such a directory is, its manifest says.  One that says nothing may be another run's,
so it stays.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.format.names import StagingName
from holdfast.checkpoint.store.removal import hide
from holdfast.checkpoint.upkeep.own_steps import OwnSteps
from holdfast.checkpoint.upkeep.read_marks import ReadMarks

KEPT_ASIDE = 2
"""The damaged steps that stay: two directories of one step may complement each other."""

FEWEST_KEPT_ASIDE = 1
"""The same where the disk is full: a save is worth more than a second damaged copy."""


def bad_steps(names: Iterable[str]) -> tuple[StagingName, ...]:
    """Return the damaged steps among the names in a store: those of the newest step first."""
    parsed = ((StagingName.parse_bad(name), name) for name in names)
    found = [bad for bad, name in parsed if bad is not None and bad.bad_name == name]
    return tuple(sorted(found, key=_age_rank, reverse=True))


class BadSteps:
    """The damaged steps of one run that were moved aside."""

    def __init__(self, steps: OwnSteps, marks: ReadMarks) -> None:
        self._steps = steps
        self._store = steps.store
        self._marks = marks

    def nbytes(self) -> int:
        """Return the bytes of all of them.

        Raises ``StorageFailed`` if the store cannot be listed.
        """
        own = filter(self._steps.has_bad, bad_steps(self._store.names()))
        paths = (self._store.directory / bad.bad_name for bad in own)
        return sum(map(self._store.disk.size_of_tree, paths))

    def hide(self, kept: int, now: float, reasons: list[str]) -> None:
        """Hide all but the newest ``kept``, once a step that is as new was read back.

        Raises ``StorageFailed`` if the store cannot be listed.
        """
        found = bad_steps(self._store.names())
        own = [bad for bad in found if self._steps.has_bad(bad)] if len(found) > kept else []
        spare = own[kept:]
        if not spare:
            return
        verified = self._verified(spare[0].step, now)
        for bad in spare:
            if bad.step <= verified:
                self._hide_one(bad, reasons)

    def _hide_one(self, bad: StagingName, reasons: list[str]) -> None:
        try:
            hide(self._store.disk, self._store.directory / bad.bad_name, bad.removed_name)
        except StorageFailed as failure:
            reasons.append(str(failure))
        else:
            reasons.append(
                f"{bad.bad_name} is removed: it was moved aside because it is damaged, and "
                "newer ones are kept"
            )

    def _verified(self, wanted: int, now: float) -> int:
        """Return the newest step that was read back; read one more if that is below ``wanted``."""
        steps = self._steps.newest_first()
        read = max((step for step in steps if step in self._marks), default=-1)
        if read < wanted <= max(steps, default=-1):
            reason = self._marks.verify(self._store, steps[0], now)
            return steps[0] if reason is None else read
        return read


def _age_rank(bad: StagingName) -> tuple[int, int, int]:
    return bad.step, bad.generation, bad.attempt
