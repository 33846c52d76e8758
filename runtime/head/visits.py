"""What processes of the same user ask a head over its socket, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.runtime.head.orders import TimeLimits


@dataclass(frozen=True, slots=True)
class Standing:
    """What the newest launch has come to, as far as another head needs it."""

    is_up: bool = False
    """Whether all its workers have initialised MPI."""
    saved_step: int | None = None
    """The newest step that its workers have reported as committed."""
    may_live_elsewhere: bool = False
    """Whether workers may live on other hosts, although the head's own has died."""
    losses: Mapping[str, int] = field(default_factory=dict)
    """How often each host was lost of late."""
    missing: tuple[str, ...] = ()
    """The hosts that are lost, and not back."""


@dataclass(frozen=True, slots=True)
class LostHead:
    """What another head had come to: its newest launch, and how that stood."""

    order: Mapping[str, Any]
    standing: Standing
    reason: str
    """Why it was killed, "" if it died by itself."""


@dataclass(frozen=True, slots=True)
class BeginJob:
    """Begin a job, or go on with it; stdout and stderr come along."""

    job: Mapping[str, Any]
    after: LostHead | None = None


@dataclass(frozen=True, slots=True)
class ShowJob:
    """Let this process show the job; ``asked`` is what it wants (`Job.asked`), if it minds."""

    asked: tuple[object, ...] | None


@dataclass(frozen=True, slots=True)
class ClientPing:
    """A sign of life of a client, with the columns that a live line may have, 0 for none."""

    columns: int
    is_plain: bool = False
    """Whether its user wants no colours."""


@dataclass(frozen=True, slots=True)
class PassSignals:
    """Signals that the client was sent."""

    numbers: tuple[int, ...]


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
class ClientTaken:
    """The client is the job's from now on; it has the lease, and all for another head."""

    job: Mapping[str, Any]
    order: Mapping[str, Any] | None
    directory: str
    cwd: str
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ClientRefused:
    """Another client, of this number, shows the job and is well."""

    pid: int


@dataclass(frozen=True, slots=True)
class AnotherJob:
    """The job is not the one that was asked for; ``job`` is what it was asked with."""

    job: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class HeadPong:
    """The answer to a client's sign of life."""


@dataclass(frozen=True, slots=True)
class LaunchOrdered:
    """Another launch begins."""

    order: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class StopOrdered:
    """Somebody else has stopped the job, and another head has to know."""


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


OfClient: TypeAlias = ClientPing | PassSignals
Asked: TypeAlias = BeginJob | ShowJob | AskStatus | AskSave | AskStop
Refused: TypeAlias = JobStarting | ClientRefused | AnotherJob
ToClient: TypeAlias = (
    ClientTaken | Refused | HeadPong | LaunchOrdered | Standing | StopOrdered | JobDone
)
Answered: TypeAlias = (
    HeadStatus | JobStarting | SaveAsked | SaveDone | SaveRefused | JobStopping | JobDone
)
