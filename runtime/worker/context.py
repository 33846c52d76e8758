"""A worker's surroundings: the connections of the trainer to the processes around it.

The worker's entry makes the context.  A script that trains without ``holdfast run`` has none, and
is told how to start (`current`).  One may be run only for its model (`training_refused`).
"""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.event import Event
from holdfast.recovery.fault import FaultKind, Visit, index_faults, parse_fault
from holdfast.runtime.errors import Ending, JobError, UsageError, exit_code_of
from holdfast.runtime.exchange.membership import Communicator
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import FaultStruck, Notice
from holdfast.runtime.run.journal import Journal, SentRecords
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.system.worker_status import OwnReport, WorkerStatus
from holdfast.runtime.worker.halt import Halt
from holdfast.runtime.worker.injector import FaultInjector


class Tell(Protocol):
    """Tells the agent something, with descriptors beside it; the agent gets copies of them."""

    def __call__(self, message: dict[str, Any], fds: Sequence[int] = (), /) -> None:
        """Send a message."""


@dataclass(slots=True)
class WorkerContext:
    """All partners of the training loop outside of it."""

    config: WorkerConfig
    communicator: Communicator
    journal: SentRecords | Journal
    page: WorkerStatus
    injector: FaultInjector
    tell_agent: Tell
    ask_agent: Callable[[dict[str, object]], dict[str, Any]]
    """Asks the agent and waits for its answer, which always comes."""
    rejected: set[int] = field(default_factory=set)
    """Steps on the disk that this launch has rejected, and not saved again."""
    newest_save: int = 0
    """The number of this worker's newest save, the same on all workers.

    Even and odd ones have memory of their own, so one is left out after each save that is durable.
    """
    halt: Halt = field(default_factory=Halt)
    """What is saved if the worker has to stop in the middle of a step or of the script."""
    beats: list[Callable[[], None]] = field(default_factory=list)
    """What is done at each heartbeat, by a thread of its own that must not wait."""
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """What is done when the script has ended, well or not."""
    after_leaving: list[Callable[[], None]] = field(default_factory=list)
    """What is done when the scripts of all workers have ended well."""

    def report(self, report: Event | OwnReport) -> None:
        """Tell the agent what has happened."""
        self.tell_agent(to_message(report))

    @property
    def run_dir(self) -> Path:
        """The directory of the checkpoints and the journal."""
        return self.config.options.run_dir

    @property
    def unsound(self) -> set[int]:
        """Steps on the disk that this launch, or one before it, has rejected."""
        return self.rejected | set(self.config.history.rejected)

    def beat(self) -> None:
        """Do what is done at each heartbeat."""
        for act in self.beats:
            act()

    def notify(self, text: str) -> None:
        """Show one line to the user, once for all workers that send the same line."""
        if is_forked():  # the connection is the worker's
            sys.stderr.write(f"holdfast: {text}\n")
        else:
            self.report(Notice(text))

    def inform(self, text: str) -> None:
        """Show one line as ``notify`` does, but not to a user who asked for quiet."""
        if not is_forked():
            self.report(Notice(text, is_progress=True))

    def open_store(self) -> CheckpointStore:
        """Return the run's checkpoints, changed only after a proof that they are the job's own."""
        owner = self.config.ownership
        return CheckpointStore(owner.run_dir, FileSystem(owner.run_dir, owner.prove))


_current: WorkerContext | None = None
_process = 0


def install(context: WorkerContext) -> None:
    """Make ``context`` the one of this process; called once, before the script runs."""
    global _current, _process
    _current, _process = context, os.getpid()


def current() -> WorkerContext:
    """Return this process's context.

    Raises:
        UsageError: nobody has launched the script; if it catches nothing, it ends with this
            sentence and without a traceback.
    """
    if _current is None:
        sys.excepthook = _end_in_words
        raise UsageError(_how_to_start())
    return _current


def _how_to_start() -> str:
    if "ipykernel" in sys.modules:
        return (
            "a notebook has no script that workers could run: write it to a file "
            "(%%writefile train.py), and start that: !holdfast run -n 4 train.py"
        )
    if sys.argv[:1] in ([], [""], ["-"], ["-c"]):
        return (
            "there is no script that workers could run: write it to a file, and start that: "
            "holdfast run -n 1 train.py"
        )
    line = shlex.join(["holdfast", "run", "-n", "1", *sys.argv])
    return f"this script trains with holdfast, which starts its workers: run `{line}`"


def _end_in_words(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """End a script that nobody has launched with the sentence of its error."""
    if not isinstance(error, JobError):
        sys.__excepthook__(kind, error, trace)
        return
    sys.stderr.write(f"holdfast: error: {error}\n")
    raise SystemExit(exit_code_of(error))


def is_worker() -> bool:
    """Return whether this process is a worker of a job."""
    return _current is not None


def is_forked() -> bool:
    """Return whether the script of a worker has forked this process, which is no worker itself."""
    return _current is not None and os.getpid() != _process


def when_script_has_ended(then: Callable[[], None]) -> None:
    """Call ``then`` when the script has ended, well or not; never if nobody launched."""
    if _current is not None:
        _current.at_end.append(then)


def when_all_have_left(then: Callable[[], None]) -> None:
    """Call ``then`` when the scripts of all workers have ended well; never if nobody launched."""
    if _current is not None:
        _current.after_leaving.append(then)


def rank() -> int:
    """Return the rank that this process was launched with, 0 if nobody has launched it."""
    if _current is not None:
        return _current.communicator.rank
    return int(os.environ.get("OMPI_COMM_WORLD_RANK", "0"))


@dataclass(slots=True)
class Trainings:
    """How far the trainings of this process are, for the end of its script."""

    planned_steps: int = 0
    """How many the newest one has, 0 without one."""
    failure: BaseException | None = None
    """The first error that has ended one.

    The script may catch it, but cannot undo it: no training follows.
    """
    end: BaseException | None = None
    """The script's error that has ended the last one, on all workers alike."""


trainings = Trainings()


def injector_of(config: WorkerConfig, journal: SentRecords | Journal) -> FaultInjector:
    """Return the worker's fault injector; it signs the journal before it strikes."""
    placed = (parse_fault(text).placed(config.host_of) for text in config.options.faults)
    faults = tuple(fault for fault in placed if fault is not None)
    hosts = {fault.address: fault.host for fault in faults if fault.host}

    def announce(visit: Visit, kind: FaultKind) -> None:
        place = visit.worker, visit.step, visit.site.value, visit.attempt
        journal.record(FaultStruck(kind.value, *place, hosts.get(visit)))

    return FaultInjector(config.worker, index_faults(faults), announce=announce)


class TrainingRefused(Ending):
    """A script has reached its training in a process that wants only its model."""


@dataclass(slots=True)
class Refusal:
    """The trainings of a script so far; the one of number ``wanted``, from 1, ends the script."""

    wanted: int
    number: int = 0
    """How many there were."""
    model: Any = None
    """That of the wanted one, or the function that makes it."""
    first_inputs: Callable[[], Any] | None = None
    """Reads the inputs of its first sample; None if the script has not come to it."""


_refusal: Refusal | None = None


@contextlib.contextmanager
def training_refused(wanted: int = 1) -> Iterator[Refusal]:
    """Let no training train meanwhile; the one of number ``wanted`` raises ``TrainingRefused``."""
    global _refusal  # noqa: PLW0603  (one script at a time)
    _refusal = Refusal(wanted)
    try:
        yield _refusal
    finally:
        _refusal = None


def is_refused(model: Any, first_inputs: Callable[[], Any]) -> bool:
    """Return whether this process wants only the script's model, and not this training's.

    Raises:
        TrainingRefused: it wants this training's model.
    """
    if _refusal is None:
        return False
    _refusal.number += 1
    if _refusal.number == _refusal.wanted:
        _refusal.model, _refusal.first_inputs = model, first_inputs
    if _refusal.first_inputs is not None:
        raise TrainingRefused("the script is only asked for its model here, not to train it")
    return True
