"""What a report says of checkpoints: each is one line of the journal as a value, or as words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A committed checkpoint; ``orphaned`` if all workers were dead by then."""

    step: int
    seconds: float
    bytes: int
    generation: int | None = None
    orphaned: bool = False


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that could not be written, or was found invalid at a restore."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rotten:
    """An old checkpoint that did not verify any more, where it was moved, and if it was mended."""

    step: int
    reason: str
    moved_to: str | None = None
    mended: bool = False

    def __str__(self) -> str:
        aside = f"moved to {self.moved_to}" if self.moved_to else "not moved"
        fate = "mended" if self.mended else aside
        return f"step {self.step} did not verify any more, {fate}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Mended:
    """A damaged checkpoint that is whole again: ``taken`` of its ``parts`` came from ``holder``."""

    step: int
    taken: int
    parts: int
    holder: str
    bad_name: str | None = None

    def __str__(self) -> str:
        return f"step {self.step} repaired: {self.taken} of {self.parts} parts from {self.holder}"


@dataclass(frozen=True, slots=True)
class NotMended:
    """Why a second holder could not mend a checkpoint, or any if no step is named."""

    reason: str
    holder: str
    step: int | None = None

    def __str__(self) -> str:
        what = "nothing" if self.step is None else f"step {self.step} not"
        return f"{what} repaired from {self.holder}: {self.reason}"


@dataclass(frozen=True, slots=True)
class WrongMemory:
    """Workers whose state was not the others'; without a majority nobody knows whose is right."""

    step: int
    workers: tuple[int, ...]
    has_majority: bool

    def __str__(self) -> str:
        workers = ", ".join(map(str, self.workers))
        fate = "fenced" if self.has_majority else "nobody knows whose state is right"
        return f"step {self.step} differs in the memory of workers {workers}: {fate}"
