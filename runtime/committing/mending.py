"""A damaged checkpoint made whole from a second holder, instead of being given up.

A restore asks for a mend, and so does the scrub of old steps.  The process that mends is the
one that commits.  A failure of a second holder is reported, and never fails the job.
"""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Protocol, TypeVar

from holdfast.checkpoint.disk.disk import Watch, unwatched
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.mend import MendResult
from holdfast.runtime.committing.mirror import Mirror
from holdfast.runtime.committing.report import Report


class Holder(Protocol):
    """Another place that may have what a run directory has lost."""

    @property
    def name(self) -> str:
        """The holder's name in messages."""

    def steps(self) -> tuple[int, ...]:
        """Return the steps of this run that it has; raise ``CheckpointError`` if it is useless."""


class SecondHolder(Holder, Protocol):
    """A holder from which this process mends."""

    def mend(self, step: int) -> MendResult | None:
        """Make a step of the run directory whole; return None if the holder lacks the step.

        Raises ``CheckpointError`` if the step cannot be mended.
        """


_Some = TypeVar("_Some", bound=Holder)


def mirrors(
    store: CheckpointStore, repair_from: Path | None, run_id: str, watch: Watch = unwatched
) -> tuple[Mirror, ...]:
    """Return the mirrors that the user has named of the run in ``store``."""
    return () if repair_from is None else (Mirror(store, repair_from, run_id, watch=watch),)


def tell_failure(report: Report, holder: str, step: int | None, reason: str) -> None:
    """Tell that a step, or any step if it is None, was not mended from a holder."""
    report.record("mend_failed", step=step, reason=reason, holder=holder)
    what = "no checkpoint" if step is None else f"checkpoint step {step}"
    verb = "can be" if step is None else "was not"
    report.notify(f"{what} {verb} mended from {holder}: {reason}")


class KnownHolders(Generic[_Some]):
    """The second holders of a run, as far as they have been of use."""

    def __init__(self, report: Report, holders: tuple[_Some, ...]) -> None:
        self._report = report
        self._holders = holders

    @property
    def has_holders(self) -> bool:
        """Whether the run has a second holder; the same on all workers."""
        return bool(self._holders)

    def steps(self) -> frozenset[int]:
        """Return the steps that any holder has; a useless holder is not asked again."""
        found: set[int] = set()
        useful = []
        for holder in self._holders:
            try:
                found.update(holder.steps())
                useful.append(holder)
            except CheckpointError as error:
                tell_failure(self._report, holder.name, None, str(error))
        self._holders = tuple(useful)
        return frozenset(found)


class Mender(KnownHolders[SecondHolder]):
    """Asks the second holders of a run, one after the other, and reports each outcome."""

    def mend(self, step: int) -> MendResult | None:
        """Make a step whole from the first holder that can; return None if none of them can."""
        for holder in self._holders:
            try:
                result = holder.mend(step)
            except CheckpointError as error:
                tell_failure(self._report, holder.name, step, str(error))
            else:
                if result is not None:
                    self._tell(holder, result)
                    return result
        return None

    def _tell(self, holder: SecondHolder, result: MendResult) -> None:
        if not result.faults:
            return  # it is whole: the fault was gone at this reading
        self._report.record(
            "mended",
            step=result.step,
            taken=result.taken,
            parts=result.parts,
            bad_name=result.bad_name,
            holder=holder.name,
        )
        aside = f"; the damaged one is now {result.bad_name}" if result.bad_name else ""
        self._report.notify(
            f"checkpoint step {result.step} was mended, {result.taken} of {result.parts} parts "
            f"from {holder.name}{aside}"
        )
