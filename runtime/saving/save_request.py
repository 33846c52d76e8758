"""One save as a worker asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.runtime.committing.save_ticket import SaveTicket


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """A save of one step, and this worker's part in it.

    ``cursor`` has the fields of the manifest's cursor that differ from save to save.
    """

    generation: int
    step: int
    attempt: int
    part: int
    parts: int
    cursor: Mapping[str, object]
    began: float
    goes_through: bool = False

    def ticket(self, launch: int, layout: str, buffer: int) -> SaveTicket:
        """Return the ticket of the save, which lies in this buffer."""
        return SaveTicket(
            launch,
            self.generation,
            self.step,
            self.attempt,
            self.parts,
            buffer,
            layout,
            self.began,
            self.goes_through,
        )
