"""Which strikes are due, given how far the run has come; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from holdfast.runtime.chaos.strike import AtStep, AtTime, Strike
from holdfast.runtime.run.journal import Record


@dataclass
class Progress:
    """How far a run has come, by its journal."""

    step: int = 0
    events: Counter[str] = field(default_factory=Counter)

    def saw(self, record: Record) -> None:
        """Take note of the journal's next record."""
        self.events[record["event"]] += 1
        if record["event"] == "step":
            self.step = max(self.step, int(record["step"]))


class Agenda:
    """The strikes that are still to come; a plan without end must be ordered by time."""

    def __init__(self, strikes: Iterable[Strike], *, is_endless: bool = False) -> None:
        self._is_endless = is_endless
        self._coming: Iterator[Strike] = iter(strikes) if is_endless else iter(())
        self.pending: list[Strike] = [] if is_endless else list(strikes)

    def due(self, elapsed_s: float, progress: Progress) -> list[Strike]:
        """Take the strikes whose moment has come off the list, and return them."""
        if not self.pending:
            self.pending += [strike for _, strike in zip(range(1), self._coming, strict=False)]
        due = [strike for strike in self.pending if _is_due(strike, elapsed_s, progress)]
        self.pending = [strike for strike in self.pending if strike not in due]
        return due

    def unstruck(self) -> list[Strike]:
        """Return the strikes of a finite plan whose moment has not come."""
        return [] if self._is_endless else list(self.pending)


def _is_due(strike: Strike, elapsed_s: float, progress: Progress) -> bool:
    moment = strike.moment
    if isinstance(moment, AtTime):
        return elapsed_s >= moment.seconds
    if isinstance(moment, AtStep):
        return progress.step >= moment.step
    return progress.events[moment.event] >= moment.count
