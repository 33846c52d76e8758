"""Where a committer tells what it does: the journal of the run, the user, and who waits for it."""

from __future__ import annotations

from typing import Protocol


class Report(Protocol):
    """Takes events and sentences; neither call raises or waits for long."""

    def record(self, event: str, /, **fields: object) -> None:
        """Write an event into the journal."""

    def notify(self, text: str) -> None:
        """Show one line to the user."""

    def disk_moved(self, change: int) -> None:
        """Take note of what the disk is busy with, as `disk.Watch` says; any thread may."""
