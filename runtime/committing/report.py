"""Where a committer tells what it does: the journal of the run, and the user."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Takes events and sentences; neither call raises or waits for long."""

    def record(self, event: str, /, **fields: object) -> None:
        """Write an event into the journal."""

    def notify(self, text: str) -> None:
        """Show one line to the user."""

    def progressed(self) -> None:
        """Take note that a file of a save is durable: the disk does not hang."""
