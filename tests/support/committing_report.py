"""A report that remembers what a committer has told."""

from __future__ import annotations

from holdfast.recovery.event import Event
from holdfast.runtime.run.journal import Record, fields_of


class StrikeResult:
    """Events and sentences, in their order."""

    def __init__(self) -> None:
        self.events: list[Record] = []
        self.sentences: list[str] = []
        self.being_written = [0]
        """Bytes of the files in hand, after each change."""

    def record(self, event: Event) -> None:
        """Remember an event."""
        self.events.append({"event": event.NAME, **fields_of(event)})

    def notify(self, text: str) -> None:
        """Remember a sentence."""
        self.sentences.append(text)

    def disk_moved(self, change: int) -> None:
        """Remember what the disk is busy with."""
        self.being_written.append(self.being_written[-1] + change)

    def of(self, event: str) -> list[Record]:
        """Return the events of one name."""
        return [record for record in self.events if record["event"] == event]
