"""What processes of the same user ask a head over its socket, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from holdfast.runtime.head.orders import TimeLimits


@dataclass(frozen=True, slots=True)
class AskStatus:
    """How does the job stand?  It may be asked again and again over one connection."""


@dataclass(frozen=True, slots=True)
class AskSave:
    """Save a checkpoint now; a sender who waits hears what became of it."""

    is_waiting: bool


@dataclass(frozen=True, slots=True)
class AskStop:
    """End the job at its next step, with a checkpoint, or at once."""

    is_urgent: bool


@dataclass(frozen=True, slots=True)
class HeadStatus:
    """How the job stands: ``pid`` is that of the head, ``client`` that of the process it serves.

    ``launch`` is the newest, and ``seen`` how far its workers are.
    """

    now: float
    pid: int
    client: int | None
    run_dir: str | None
    launch: Mapping[str, object] | None
    seen: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class JobStarting:
    """The head was told no job yet."""


@dataclass(frozen=True, slots=True)
class SaveAsked:
    """The workers were asked for a checkpoint."""


@dataclass(frozen=True, slots=True)
class SaveDone:
    """A checkpoint that began after the request is committed, so many seconds after it."""

    step: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SaveRefused:
    """There is no checkpoint; without a reason, because the job has ended."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class JobStopping:
    """The job was asked to end."""


@dataclass(frozen=True, slots=True)
class JobDone:
    """The job has ended; ``lost`` are its hosts that did not come back."""

    exit_code: int
    limits: TimeLimits
    lost: tuple[str, ...] = ()


Asked: TypeAlias = AskStatus | AskSave | AskStop
Answered: TypeAlias = (
    HeadStatus | JobStarting | SaveAsked | SaveDone | SaveRefused | JobStopping | JobDone
)
