"""The events of checkpoints: `events` says how they are written down."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.runtime.run import progress
from holdfast.runtime.run.event_kinds import Count, ManySeconds, Seconds, event


@event("checkpoint", is_told=False, listed="checkpoints")
class Checkpoint(NamedTuple):
    """A save is committed, so many seconds after it began."""

    step: Count
    seconds: Seconds
    bytes: Count
    generation: int | None


@event("checkpoint_failed", listed="failed_checkpoints", hidden=["generation", "seconds"])
class CheckpointFailed(NamedTuple):
    """A save has failed; training goes on."""

    step: Count
    reason: str
    generation: int | None = None
    seconds: Seconds | None = None

    def words(self) -> str:
        return f"the checkpoint of step {self.step} failed: {self.reason}"


@event("checkpoint_skipped", is_told=False)
class CheckpointSkipped(NamedTuple):
    """A save was due while another one was in flight."""

    step: int | None
    generation: int | None = None


@event("save_interval", is_told=False)
class SaveInterval(NamedTuple):
    """The interval of ``--save-every auto`` was found anew, from the costs of the newest saves."""

    seconds: Seconds | None
    costs_s: ManySeconds
    failures: Count
    mean_time_between_failures_s: Seconds
    generation: int | None = None


@event("prune_failed", is_told=False)
class PruneFailed(NamedTuple):
    """A name that may go is left, or an old step was not read again."""

    reason: str


@event("storage_downgrade", is_told=False)
class StorageDowngrade(NamedTuple):
    """The file system lacks a guarantee."""

    reason: str


@event("store_removed")
class StoreRemoved(NamedTuple):
    """The steps before ``step`` are gone from a directory."""

    directory: str
    step: Count

    def words(self) -> str:
        return f"{self.directory} was removed, or its disk unmounted"


@event("rejected", listed="rejected_checkpoints")
class Rejected(NamedTuple):
    """A restore has found a checkpoint invalid."""

    step: Count
    reason: str

    def words(self) -> str:
        return f"rejected the checkpoint of step {self.step}: {self.reason}"


@event("unreadable", listed="unread_checkpoints", hidden=["path", "error"])
class Unreadable(NamedTuple):
    """A restore has given up a checkpoint, which may be whole; ``error`` is that of the disk."""

    step: Count
    reason: str
    seconds: Seconds
    path: str | None
    error: str | None
    tries: int = 1

    def words(self) -> str:
        waited = progress.duration(self.seconds)
        return f"gave up the checkpoint of step {self.step} after {waited}: {self.reason}"
