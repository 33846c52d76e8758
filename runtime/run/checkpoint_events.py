"""The events of checkpoints: `events` says how they are written down."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.recovery.event import Event
from holdfast.runtime.run import progress


@dataclass(frozen=True)
class Checkpoint(Event, name="checkpoint", is_told=False, listed="checkpoints"):
    """A save is committed, so many seconds after it began."""

    step: int
    seconds: float
    bytes: int
    generation: int | None


@dataclass(frozen=True)
class CheckpointFailed(
    Event,
    name="checkpoint_failed",
    sentence="the checkpoint of step {step} failed: {reason}",
    listed="failed_checkpoints",
    hidden=["generation", "seconds"],
):
    """A save has failed; training goes on."""

    step: int
    reason: str
    generation: int | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class CheckpointSkipped(Event, name="checkpoint_skipped", is_told=False):
    """A save was due while another one was in flight."""

    step: int | None
    generation: int | None = None


@dataclass(frozen=True)
class SaveInterval(Event, name="save_interval", is_told=False):
    """The interval of ``--save-every auto`` was found anew, from the costs of the newest saves."""

    seconds: float | None
    costs_s: tuple[float, ...]
    failures: int
    mean_time_between_failures_s: float
    generation: int | None = None


@dataclass(frozen=True)
class PruneFailed(Event, name="prune_failed", is_told=False):
    """A name that may go is left, or an old step was not read again."""

    reason: str


@dataclass(frozen=True)
class StorageDowngrade(Event, name="storage_downgrade", is_told=False):
    """The file system lacks a guarantee."""

    reason: str


@dataclass(frozen=True)
class StoreRemoved(
    Event, name="store_removed", sentence="{directory} was removed, or its disk unmounted"
):
    """The steps before ``step`` are gone from a directory."""

    directory: str
    step: int


@dataclass(frozen=True)
class Rejected(
    Event,
    name="rejected",
    sentence="rejected the checkpoint of step {step}: {reason}",
    listed="rejected_checkpoints",
):
    """A restore has found a checkpoint invalid."""

    step: int
    reason: str


@dataclass(frozen=True)
class Unreadable(Event, name="unreadable", listed="unread_checkpoints", hidden=["path", "error"]):
    """A restore has given up a checkpoint, which may be whole; ``error`` is that of the disk."""

    step: int
    reason: str
    seconds: float
    path: str | None
    error: str | None
    tries: int = 1

    def describe(self) -> str:
        waited = progress.duration(self.seconds)
        return f"gave up the checkpoint of step {self.step} after {waited}: {self.reason}"


@dataclass(frozen=True)
class StepCopied(Event, name="copied", is_told=False):
    """A step is whole in the place of copies."""

    step: int
    seconds: float
    bytes: int
    url: str


@dataclass(frozen=True)
class CopiesTold(Event, name="copies_told", sentence="copies to {url}: {text}", listed="notices"):
    """The place of copies fails or is well again, or a step is left out."""

    url: str
    text: str
