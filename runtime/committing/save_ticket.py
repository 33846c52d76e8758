"""The few numbers that name one save, in every message about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.format.record import Header


@dataclass(frozen=True, slots=True)
class SaveTicket:
    """One save: whose, of which step, in how many parts, and in which memory.

    ``launch`` is the launch's first generation, ``generation`` that of the world that
    saves; ``began`` is in seconds of the monotonic clock, which all processes of a host share.
    """

    launch: int
    generation: int
    step: int
    attempt: int
    parts: int
    buffer: int
    layout: str
    began: float
    goes_through: bool = False
    """Whether the run directory has to have it: the job ends with it, or a user waits for it."""

    @property
    def age(self) -> tuple[int, int]:
        """Generation and attempt; the later of two saves of a run has the larger pair."""
        return self.generation, self.attempt

    @property
    def key(self) -> tuple[int, int, int]:
        """The name of the staged save: step, generation and attempt."""
        return self.step, self.generation, self.attempt

    def header(self, run_id: str) -> Header:
        """Return the header of the save's shards."""
        return Header(run_id, self.generation, self.step)

    def as_json(self) -> dict[str, object]:
        """Return the ticket as a JSON object."""
        return dataclasses.asdict(self)

    @staticmethod
    def of(message: Mapping[str, Any]) -> SaveTicket:
        """Return the ticket in a message; raises ``KeyError`` if a field is missing."""
        names = [field.name for field in dataclasses.fields(SaveTicket)]
        return SaveTicket(**{name: message[name] for name in names})
