"""Where a committer tells what it does: the journal of the run, the user, and who waits for it."""

from __future__ import annotations

import contextlib
from typing import Protocol

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store.store import CheckpointStore


class Report(Protocol):
    """Takes events and sentences; neither call raises or waits for long."""

    def record(self, event: str, /, **fields: object) -> None:
        """Write an event into the journal."""

    def notify(self, text: str) -> None:
        """Show one line to the user."""

    def disk_moved(self, change: int) -> None:
        """Take note of what the disk is busy with, as `disk.Watch` says; any thread may."""


def tell_removal(report: Report, store: CheckpointStore, newest: int) -> None:
    """Tell that the steps of a store before ``newest``, or before older new ones, are gone."""
    directory, step = str(store.directory), newest
    with contextlib.suppress(CheckpointError):
        step = min(store.steps(), default=newest)
    report.record("store_removed", directory=directory, step=step)
    report.notify(
        f"{directory} was removed, or its disk unmounted: it has no checkpoint before step {step}"
    )
