"""The workers of a host as their agent sees them: for the supervisor, and for ``holdfast status``.

The agent reads its heartbeat pages and says what stands there.  So the answer is there while
workers compute, and while no supervisor lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.runtime.progress.step_report import StepReport
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase
from holdfast.runtime.system.processes import resident_bytes


class Watched(Protocol):
    """A worker that is hosted; ``pid`` is None before it has a process."""

    @property
    def worker(self) -> int:
        """Its id."""

    @property
    def pid(self) -> int | None:
        """Its process."""

    @property
    def page(self) -> HeartbeatPage:
        """Its heartbeat page."""

    @property
    def place(self) -> str:
        """Where it was when it had not come on for long."""


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker; ``silent_s`` is how long its heartbeat has stood still, None if unwatched.

    ``standing_s`` is how long all have waited for it, at ``where`` in its code; None if they
    have not.
    """

    worker: int
    pid: int | None
    phase: str
    step: int
    generation: int
    resident_bytes: int | None
    silent_s: float | None
    standing_s: float | None = None
    where: str = ""

    @staticmethod
    def of(fields: Any) -> WorkerReport | None:
        """Return the worker of a message, None if it makes no sense."""
        try:
            return WorkerReport(**fields)
        except TypeError:
            return None


def short_report(workers: Sequence[Watched]) -> Message:
    """Return how far training has come, as fields of a message: cheap at any number of workers."""
    newest = newest_of(watched.page for watched in workers)
    return {
        "progress": None if newest is None else newest.to_json(),
        "workers": sum(watched.pid is not None for watched in workers),
        "phase": slowest_phase(workers),
    }


def newest_of(pages: Iterable[HeartbeatPage]) -> StepReport | None:
    """Return the newest word of any worker: the first one of today's world has written it."""
    contents = (page.progress for page in pages)
    told = [StepReport.decode(content) for content in contents if content]
    return max(filter(None, told), key=lambda report: report.now, default=None)


def slowest_phase(workers: Iterable[Watched]) -> str | None:
    """Return the phase of the worker that has come least far, None without workers."""
    phases = [watched.page.phase for watched in workers]
    return min(phases, key=_IN_ORDER.index).label if phases else None


_IN_ORDER = (
    *(phase for phase in Phase if phase is not Phase.LEAVING),
    Phase.LEAVING,
)
"""A worker leaves when its script has come to its end."""


def describe(watched: Watched, silent_s: float | None, standing_s: float | None = None) -> Message:
    """Return the fields of a ``WorkerReport``; it reads the worker's memory from /proc."""
    page = watched.page
    return {
        "worker": watched.worker,
        "pid": watched.pid,
        "phase": page.phase.label,
        "step": page.step,
        "generation": page.generation,
        "resident_bytes": None if watched.pid is None else resident_bytes(watched.pid),
        "silent_s": None if silent_s is None else round(silent_s, 3),
        "standing_s": None if standing_s is None else round(standing_s, 3),
        "where": "" if standing_s is None else watched.place,
    }
