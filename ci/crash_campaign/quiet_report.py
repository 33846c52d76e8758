"""A report that keeps nothing: words of a victim are its own."""

from __future__ import annotations


class QuietReport:
    """Takes what a committer tells."""

    def record(self, event: str, /, **fields: object) -> None:
        """Take an event."""

    def notify(self, text: str) -> None:
        """Take a sentence."""

    def disk_moved(self, change: int) -> None:
        """Take note of what the disk is busy with."""
