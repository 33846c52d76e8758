"""What processes of the same user ask a head over its socket, and what it answers.

Requests for a checkpoint now wait (`SaveRequests`).  A checkpoint counts if it was *begun* after
the request: one in flight holds an older state.  A request dies with its workers, and a save may
fail.  In both cases the workers are asked again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from holdfast.recovery.event import WorkerCompleted, WorkerStopped, WorldFormed
from holdfast.runtime.head.orders import TimeLimits
from holdfast.runtime.run import events
from holdfast.runtime.run.checkpoint_events import Checkpoint, CheckpointFailed
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import Epoch, JobEnded, JobStarted, Step
from holdfast.runtime.run.progress import LaunchReport

_MOST_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """What the newest launch has come to, as far as another head needs it."""

    order: Mapping[str, Any] | None = None
    """The agent's order for it (`LaunchOrder`), None before the first one."""
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
    prepared: int = 0
    """How many workers were made since, of launches that were to follow it."""
    asked: int | None = None
    """How many workers a user has asked for, until a launch has them."""


@dataclass(frozen=True, slots=True)
class BeginJob:
    """Begin a job, or go on with it; stdout and stderr come along."""

    job: Mapping[str, Any]
    after: Standing | None = None
    """What another head had come to, None unless that is lost."""
    reason: str = ""
    """Why it was killed, "" if it died by itself."""


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
class AskScale:
    """Go on with so many workers, as soon as they are ready."""

    workers: int


@dataclass(frozen=True, slots=True)
class ClientTaken:
    """The client is the job's from now on; it has the lease, and all for another head."""

    job: Mapping[str, Any]
    workers: int
    """How many the newest launch has."""
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
class StopOrdered:
    """Somebody else has stopped the job, and another head has to know."""


@dataclass(frozen=True, slots=True)
class HeadStatus:
    """How the job stands: ``pid`` is that of the head, ``client`` that of the process it serves.

    ``launched`` are the workers of the newest launch, and ``seen`` is how far they are.
    """

    now: float
    pid: int
    client: int | None
    run_dir: str | None
    launched: int
    seen: LaunchReport


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
class ScaleAnswered:
    """The job will have so many workers, or a reason says why it will not."""

    refusal: str = ""


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
Asked: TypeAlias = BeginJob | ShowJob | AskStatus | AskSave | AskStop | AskScale
Refused: TypeAlias = JobStarting | ClientRefused | AnotherJob
ToClient: TypeAlias = ClientTaken | Refused | HeadPong | Standing | StopOrdered | JobDone
Answered: TypeAlias = (
    HeadStatus
    | JobStarting
    | SaveAsked
    | SaveDone
    | SaveRefused
    | ScaleAnswered
    | JobStopping
    | JobDone
)


@dataclass(slots=True)
class _Request:
    answer: Callable[[Answered], None]
    is_waiting: bool
    is_asked: bool = False
    """Whether the workers of this launch were asked, and have not failed since."""
    asked_at: float | None = None
    """When workers were asked first; None before."""
    failures: list[str] = field(default_factory=list)
    saved: SaveDone | None = None
    """The checkpoint: its step, and the seconds from the request to the commit."""


class SaveRequests:
    """The requests that wait for their answers, and what the records of the job tell of saves.

    Args:
        ask: asks the workers for a checkpoint.
        clock: tells the monotonic seconds, as records have them.
    """

    def __init__(
        self, ask: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._waiting: dict[int, _Request] = {}
        self._last_number = 0
        self._is_over = False
        self._is_training = False
        """Whether there are workers that can be asked."""
        self._saved_steps: set[int] = set()
        """Those of this job."""
        self._last_step: int | None = None
        """That of the training which has ended last; None once another one has begun."""

    def add(self, answer: Callable[[Answered], None], *, is_waiting: bool) -> int:
        """Take a request, and return its number.

        ``answer`` gets `SaveAsked` once the workers were asked, and if the request is waiting
        `SaveDone` or `SaveRefused` later.
        """
        self._last_number += 1
        self._waiting[self._last_number] = _Request(answer, is_waiting)
        self._go_on()
        return self._last_number

    def forget(self, number: int) -> None:
        """Forget a request, whose sender has gone."""
        self._waiting.pop(number, None)

    def follow(self, entry: Entry[Any]) -> None:
        """Take note of the job's next line."""
        match entry.event:
            case JobStarted() | events.LaunchBegan():
                self._is_training = self._is_over = False
                self._last_step = None
                for request in self._waiting.values():
                    request.is_asked = False
            case WorldFormed():
                self._is_training, self._last_step = True, None
            case Step() | Epoch():
                self._is_training = True
            case Checkpoint(step, seconds):
                self._is_training = True
                self._saved_steps.add(step)
                self._serve(step, entry.now, entry.now - seconds)
            case CheckpointFailed(_, reason):
                self._failed(reason)
            case WorkerCompleted(_, step) | WorkerStopped(_, step):
                # The head repeats it, perhaps when the next training has begun.
                if entry.source != "head":
                    self._last_step = step
            case JobEnded():
                self._is_over, self._is_training = True, False
                if self._last_step in self._saved_steps:
                    self._serve(self._last_step, entry.now)
        self._go_on()

    def _serve(self, step: int, now: float, began: float = math.inf) -> None:
        """Let a checkpoint answer those who have asked before it began, or at its step."""
        for request in self._waiting.values():
            if request.asked_at is not None and began >= request.asked_at:
                seconds = now - request.asked_at
                request.saved = SaveDone(step, seconds)

    def _failed(self, reason: str) -> None:
        for request in self._waiting.values():
            if request.asked_at is not None:
                request.failures.append(reason)
                request.is_asked = False

    def _go_on(self) -> None:
        """Ask the workers that were not asked, and answer what is known."""
        for number, request in list(self._waiting.items()):
            if self._is_training and not request.is_asked:
                request.is_asked = True
                if request.asked_at is None:
                    request.asked_at = self._clock()
                self._ask()
                request.answer(SaveAsked())
                if not request.is_waiting:
                    self.forget(number)
            if request.saved is not None:
                self._end(number, request.saved)
            elif self._is_over:
                self._end(number, SaveRefused())
            elif len(request.failures) >= _MOST_FAILURES:
                self._end(number, SaveRefused(request.failures[-1]))

    def _end(self, number: int, answer: Answered) -> None:
        self._waiting.pop(number).answer(answer)
