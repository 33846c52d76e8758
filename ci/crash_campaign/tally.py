"""The findings of a part of the campaign: its cases, and the failures of each kind."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar


class Enough(Exception):
    """A sabotage was caught: no further case is needed."""

    is_wanted: ClassVar[bool] = False
    caught: ClassVar[contextlib.AbstractContextManager[None]]


Enough.caught = contextlib.suppress(Enough)


class Wrong(Enum):
    """The ways in which a case can go wrong."""

    SILENT = "silent"
    """Other bytes than those that were saved, or an older step without a reason."""
    LOST = "lost"
    """An acknowledged or undamaged step is not restored."""
    FALSE = "falsely saved"
    """A save reported success, and its step is not restored."""
    OTHER = "other"
    """A later save or prune fails, a visible step is not whole, an error that is not ours."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """One thing that went wrong in one case."""

    wrong: Wrong
    case: int
    what: str


@dataclass(slots=True)
class Tally:
    """The count of one part."""

    part: str
    replay: str
    """The options that name it, for a replay."""
    skipped: str | None = None
    cases: int = 0
    complaints: list[Complaint] = field(default_factory=list)
    notes: dict[str, int] = field(default_factory=dict)

    def note(self, name: str, count: int = 1) -> None:
        """Count an observation that is no failure."""
        self.notes[name] = self.notes.get(name, 0) + count

    def complain(self, wrong: Wrong, case: int, what: str) -> None:
        """Record that a case went wrong."""
        self.complaints.append(Complaint(wrong, case, what))
        if Enough.is_wanted:
            raise Enough

    def count(self, wrong: Wrong) -> int:
        """Return how many cases went wrong in this way."""
        return len({c.case for c in self.complaints if c.wrong is wrong})


def table(tallies: list[Tally]) -> str:
    """Return the campaign's figures, a line for each part, and what each part noted."""
    header = f"{'part':<24}{'cases':>8}" + "".join(f"{wrong.value:>15}" for wrong in Wrong)
    lines = [header]
    for tally in tallies:
        counts = "".join(f"{tally.count(wrong):>15}" for wrong in Wrong)
        lines.append(f"{tally.part:<24}{tally.cases:>8}{counts}")
    for tally in tallies:
        if tally.skipped:
            lines.append(f"skipped: {tally.part}: {tally.skipped}")
        noted = ", ".join(f"{name}: {count}" for name, count in sorted(tally.notes.items()))
        if noted:
            lines.append(f"{tally.part}: {noted}")
    return "\n".join(lines)
