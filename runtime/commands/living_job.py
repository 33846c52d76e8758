"""The job that lives in a run directory: whether one does, and what it is asked over its socket.

The lease names the head's process and socket.  A socket with a listener is a living head: the
kernel ends it with the process.  A directory that was moved or copied has the lease of another
place, so no job lives there.  A job that is just starting has the lease, and no head yet: so a
process that holds that very lease file counts, and no number of a process that was used again.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import ExitCode, JobError, NotSaved, UsageError
from holdfast.runtime.head.visits import (
    Answered,
    AskSave,
    AskStatus,
    AskStop,
    HeadStatus,
    JobStarting,
)
from holdfast.runtime.run.entries import Entry, completed_step, last_job_in, last_of
from holdfast.runtime.run.events import JobEnded
from holdfast.runtime.run.files import ForeignFile
from holdfast.runtime.run.find_run import no_run
from holdfast.runtime.run.lease import has_ended
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Channel, Message, MessageKinds, connect, to_message
from holdfast.runtime.system.processes import is_stopped
from holdfast.runtime.system.witnessed_time import Bound

_ANSWERED: MessageKinds[Answered] = MessageKinds(Answered)
_STATUS: MessageKinds[HeadStatus] = MessageKinds(HeadStatus)
_RETRY_S = 0.05
_ANSWERS_WITHIN_S = 2.0
"""People wait for the answer; a head looks at its messages many times a second."""


class Life(Enum):
    """What is left of the job that owns a run directory, or owned it last."""

    RUNNING = "running"
    DETACHED = "detached"
    """It runs, and no client shows it."""
    ENDED = "ended"
    """It has said its end in the lease."""
    GONE = "gone"
    UNKNOWN = "unknown"
    """It belongs to another host or user."""


LIVES = (Life.RUNNING, Life.DETACHED)

_NOBODY = "no job runs in {}; start one with `holdfast run`"
_RUNNING = {
    Life.RUNNING: "running",
    Life.DETACHED: "running without its command; {}",
}
_WITHOUT_END = {
    Life.ENDED: "over, and its journal does not say how; go on with `holdfast run`",
    Life.GONE: "lost with its head; go on with `holdfast run`",
    Life.UNKNOWN: "running, or lost: {}",
}
"""How a job stands whose journal tells no end."""


class NobodyRuns(NotSaved):
    """No job runs in ``directory``; ``life`` is whether the last one has ended, or was lost."""

    def __init__(self, life: Life, directory: RunDirectory) -> None:
        super().__init__(_NOBODY.format(directory.path))
        self.life = life


@dataclass(frozen=True, slots=True)
class JobStanding:
    """How the job stands, as the lease and the end of the journal tell it."""

    outcome: str
    is_over: bool


def ending_of(job: Sequence[Entry[Any]], life: Life, words: str) -> JobStanding:
    """Return how a job stands, in words; ``words`` say more of it."""
    if life in _RUNNING:
        return JobStanding(_RUNNING[life].format(words), is_over=False)
    ended = last_of(job, JobEnded)
    if ended is not None:
        return JobStanding(ended.event.describe(), is_over=True)
    step = completed_step(job)
    if step is not None:
        lost = ", after its head was lost" if life is Life.GONE else ""
        return JobStanding(f"completed step {step}{lost}", is_over=True)
    return JobStanding(_WITHOUT_END[life].format(words), is_over=life is not Life.UNKNOWN)


def _with_last_job(error: NobodyRuns, directory: RunDirectory) -> str:
    """Return that no job runs, with the end of the last one."""
    job = last_job_in(directory)
    if not job:
        return str(error)
    ended, begin = last_of(job, JobEnded), f"no job runs in {directory.path}: the last one"
    if ended is None:
        return f"{begin} was lost; go on with `holdfast run`"
    if ended.event.exit_code == ExitCode.DONE:
        return f"{begin} {ended.event.reason}; look at it with `holdfast report {directory.path}`"
    return f"{begin} {ended.event.describe()}"


def life_of(directory: RunDirectory) -> Life:
    """Return what is left of the job in ``directory``."""
    with contextlib.closing(JobSocket(directory)) as socket:
        return find_life(directory, socket.ask())[0]


def find_life(directory: RunDirectory, answer: HeadStatus | None) -> tuple[Life, str]:
    """Return what is left of the job in ``directory``, and words on it if there are any.

    ``answer`` is what its head has told of its status, None if it has not answered.
    """
    if answer is not None and answer.run_dir:
        if answer.client is not None:
            return Life.RUNNING, ""
        where = shlex.quote(str(directory.path))
        return Life.DETACHED, f"take it over: `holdfast attach {where}`"
    try:
        channel = living_head(directory)
    except NobodyRuns as error:
        return error.life, str(error)
    except JobError as error:
        return Life.UNKNOWN, str(error)
    if channel is not None:
        channel.close()
    return Life.RUNNING, ""


def living_head(directory: RunDirectory) -> Channel | None:
    """Return a connection to the head of the job in ``directory``; None if that is to come.

    Raises:
        NotSaved: no job runs, or it is out of reach; the message says which.
        UsageError: the lease is not the run's own file.
    """
    owner = _owner_of(directory)
    here = os.uname().nodename
    if owner["host"] != here:
        raise NotSaved(
            f"{directory.path} belongs to host {owner['host']}, this is {here}; ask there"
        )
    takes_orders = owner.get("takes_orders") is not False  # `holdfast repair` takes none
    if takes_orders:
        if channel := _connected(directory):
            return channel
        holders = [owner[name] for name in ("pid", "client") if name in owner]
        if any(_holds(pid, directory.lease_path) for pid in holders):
            return None
    is_over = has_ended(owner) or not takes_orders
    raise NobodyRuns(Life.ENDED if is_over else Life.GONE, directory)


def _connected(directory: RunDirectory) -> Channel | None:
    """Return a connection to the head that the lease names, None if none listens there."""
    socket = directory.agent_socket()
    with contextlib.suppress(OSError):
        return None if socket is None else connect(socket)
    return None


def _owner_of(directory: RunDirectory) -> dict[str, Any]:
    try:
        owner = directory.lease_owner()
        owner |= {"host": str(owner["host"]), "pid": int(owner["pid"])}
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise NobodyRuns(Life.GONE, directory) from error
    except OSError as error:
        raise NotSaved(
            f"{directory.lease_path} cannot be read: {error.strerror or error}; ask as its owner, "
            "or again when the file system answers"
        ) from error
    return owner


def _holds(pid: int, lease_path: Path) -> bool:
    """Return whether a process has the lease file open.

    Raises:
        NotSaved: it is another user's.
    """
    try:
        lease = lease_path.stat()
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.path.samestat(link.stat(), lease):
                    return True
    except PermissionError as error:
        raise NotSaved(f"process {pid} belongs to another user; ask as that user") from error
    except OSError:  # it has ended meanwhile
        return False
    return False


class JobSocket:
    """Asks how a job stands, again and again over one connection, and over another if it ended."""

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        self._channel: Channel | None = None
        self._is_asked = False
        self.is_silent = False
        """Whether there is a head that has not answered the last question."""

    def ask(self, within_s: float = _ANSWERS_WITHIN_S) -> HeadStatus | None:
        """Return what the head tells of the job, None if there is no head or no answer.

        A question without an answer stays open: a head that is stopped collects no others.
        """
        self.is_silent = False
        for _ in range(2):  # the head may have ended since the last question
            channel = self._channel = self._channel or _connected(self._directory)
            if channel is None:
                return None
            if not self._is_asked:
                channel.post(to_message(AskStatus()))
                self._is_asked = True
            answer = _answer(channel, within_s)
            if answer is not None:
                self._is_asked = False
                return _STATUS.decode(answer)
            if not channel.is_closed:
                self.is_silent = True
                return None
            self.close()
        return None

    def close(self) -> None:
        """Leave the head alone."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        self._is_asked = False


def _answer(channel: Channel, within_s: float) -> Message | None:
    """Return the newest message, None if none comes in time or the head has gone."""
    found = (answers[-1] for answers in channel.serve(Bound(within_s)) if answers)
    return next(found, None)


def answers_to(
    directory: RunDirectory, order: AskSave | AskStop, timeout_s: float, until: str
) -> Generator[Answered, None, None]:
    """Send an order to a job, and yield each answer; ``until`` says what has not been yet.

    A job that is just starting is waited for, and one whose head was lost and replaced.

    Raises:
        NotSaved: no job runs there, or time ran out.
    """
    reason = no_run(directory.path)
    if reason is not None:
        raise NotSaved(reason)
    bound = Bound(timeout_s)
    while not bound.has_passed:
        try:
            channel = living_head(directory)
        except NobodyRuns as error:
            raise NotSaved(_with_last_job(error, directory)) from error
        if channel is not None:
            with contextlib.closing(channel):
                channel.post(to_message(order))
                for lines in channel.serve(bound):
                    answers = map(_ANSWERED.decode, lines)
                    yield from (found for found in answers if not isinstance(found, JobStarting))
        time.sleep(_RETRY_S)
    raise NotSaved(_late(directory, timeout_s, until))


def _late(directory: RunDirectory, timeout_s: float, until: str) -> str:
    """Return why there is no answer in time."""
    path, owner = directory.path, _owner_of(directory)
    for who, pid in (("head", owner["pid"]), ("client", owner.get("client"))):
        if isinstance(pid, int) and is_stopped(pid):
            return (
                f"the {who} of the job in {path}, pid {pid}, is stopped; "
                f"let it go on with `kill -CONT {pid}`, then ask again"
            )
    return (
        f"the job in {path} {until} within {timeout_s:g} s; "
        "give a longer --timeout, or look at `holdfast report`"
    )
