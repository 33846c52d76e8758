"""The job that lives in a run directory: how it is found, shown and ordered, or how it has ended.

The lease names the head's process and socket.  A socket with a listener is a living head: the
kernel ends it with the process.  A directory that was moved or copied has the lease of another
place, so no job lives there.  A job that is just starting has the lease, and no head yet: so a
process that holds that very lease file counts, and no number of a process that was used again.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from holdfast.runtime.errors import JobError, NotSaved, RunDirectoryBusy, UsageError
from holdfast.runtime.head.head_process import STOPPED_ENDS_WITHIN_S
from holdfast.runtime.head.visits import (
    AnotherJob,
    Answered,
    AskSave,
    AskScale,
    AskStatus,
    AskStop,
    ClientRefused,
    ClientTaken,
    HeadStatus,
    JobStarting,
    ShowJob,
    ToClient,
)
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.entries import Entry, completed_step, last_job_in, last_of
from holdfast.runtime.run.events import JobEnded
from holdfast.runtime.run.files import ForeignFile
from holdfast.runtime.run.find_run import no_run
from holdfast.runtime.run.lease import LeaseOwner
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import FDS, Channel, Message, MessageKinds, connect, to_message
from holdfast.runtime.system.processes import HeldProcess, is_alive, is_stopped
from holdfast.runtime.system.witnessed_time import Bound

_ANSWERED: MessageKinds[Answered] = MessageKinds(Answered)
_STATUS: MessageKinds[HeadStatus] = MessageKinds(HeadStatus)
_TO_CLIENT: MessageKinds[ToClient] = MessageKinds(ToClient)
_RETRY_S = 0.05
_ANSWERS_WITHIN_S = 2.0
"""People wait for the answer; a head looks at its messages many times a second."""
SHOWS_WITHIN_S = 15.0
"""A busy machine may need that long; a head that does not answer then may be ended."""


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


_REFUSALS = {
    "another": "another job, which pid {pid} shows; wait for it to end, stop it with `holdfast "
    "stop`, or choose another --run-dir",
    "attached": "a job that pid {pid} shows already; it needs no `holdfast attach`, and "
    "`holdfast status` shows how it goes",
    "stopped_client": "a job whose client, pid {pid}, is stopped; let it go on (kill -CONT {pid}), "
    "or end it (kill -KILL {pid}), then ask again",
    "silent": "a job whose head, pid {pid}, does not answer; let it go on (kill -CONT {pid}) or "
    "end it (kill -KILL {pid}), then run again",
    "starting": "a job that is just starting; run again in a minute",
}


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
    end = _end_told(job, life)
    is_over = end != "" or life is not Life.UNKNOWN
    return JobStanding(end or _WITHOUT_END[life].format(words), is_over)


def _end_told(job: Sequence[Entry[Any]], life: Life) -> str:
    """Return how a job has ended, as its journal tells it; "" if it tells no end."""
    ended, step = last_of(job, JobEnded), completed_step(job)
    if ended is not None:
        return ended.event.describe()
    lost = ", after its head was lost" if life is Life.GONE else ""
    return "" if step is None else f"completed step {step}{lost}"


def no_job(error: NobodyRuns, directory: RunDirectory) -> str:
    """Return that no job runs, with the end of the last one."""
    job = last_job_in(directory)
    if not job:
        return str(error)
    end, look = _end_told(job, error.life), f"; look at it with {directory.command('report')}"
    last = f"{end}{look}" if end else f"is {_WITHOUT_END[error.life]}"
    return f"no job runs in {directory.path}: the last one {last}"


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
        return Life.DETACHED, f"take it over: {directory.command('attach')}"
    try:
        channel = find_head(directory)
    except NobodyRuns as error:
        return error.life, str(error)
    except JobError as error:
        return Life.UNKNOWN, str(error)
    if channel is not None:
        channel.close()
    return Life.RUNNING, ""


def find_head(directory: RunDirectory) -> Channel | None:
    """Return a connection to the head of the job in ``directory``; None if that is to come.

    Raises:
        NotSaved: no job runs, or it is out of reach; the message says which.
        UsageError: the lease is not the run's own file.
    """
    owner, here = _owner_of(directory), os.uname().nodename
    if owner.host != here:
        raise NotSaved(f"{directory.path} belongs to host {owner.host}, this is {here}; ask there")
    if owner.takes_orders:
        if channel := _connected(directory, owner):
            return channel
        holders = [pid for pid in (owner.pid, owner.client) if pid is not None]
        if any(_holds(pid, directory.lease_path) for pid in holders):
            return None
    is_over = owner.ended or not owner.takes_orders
    raise NobodyRuns(Life.ENDED if is_over else Life.GONE, directory)


def _connected(directory: RunDirectory, owner: LeaseOwner) -> Channel | None:
    """Return a connection to the head of ``owner``, None if none listens here.

    A copy of a run directory has a lease of another place.  A place that is not there may be
    this one, as a job in a container sees it.
    """
    with contextlib.suppress(OSError):
        place, is_here = owner.directory, owner.host == os.uname().nodename
        is_its = place is not None and (not place.exists() or directory.path.samefile(place))
        if is_here and is_its and owner.agent is not None:
            return connect(owner.agent)
    return None


def _owner_of(directory: RunDirectory) -> LeaseOwner:
    """Return the owner that the lease names; raises as `find_head` does."""
    try:
        owner = directory.lease_owner()
    except ForeignFile as error:
        raise UsageError(str(error)) from error
    except (FileNotFoundError, ValueError) as error:
        raise NobodyRuns(Life.GONE, directory) from error
    except OSError as error:
        raise NotSaved(
            f"{directory.lease_path} cannot be read: {error.strerror or error}; ask as its owner, "
            "or again when the file system answers"
        ) from error
    if owner.host is None or owner.pid is None:
        raise NobodyRuns(Life.GONE, directory)
    return owner


def _owner_if_told(directory: RunDirectory) -> LeaseOwner:
    """Return the owner that the lease names; nothing if it cannot be read."""
    with contextlib.suppress(OSError, ValueError):
        return directory.lease_owner()
    return LeaseOwner()


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


@dataclass(frozen=True, slots=True)
class FoundHead:
    """A living head, and what it has answered."""

    channel: Channel
    process: HeldProcess
    greeting: ClientTaken
    lease: int
    """The descriptor of the lease, that this process holds as well from now on."""


class OwnerEnded(RunDirectoryBusy):
    """The job had no client, and its head was stopped; it was ended just now."""


def find_owner(run_dir: RunDirectory, asked: JobOptions | None = None) -> FoundHead | None:
    """Return the head of the job in ``run_dir``, for this process to show; None if it is to come.

    A request of another script, or for a fresh run, attaches to no job.

    Raises:
        OwnerEnded: it was ended.
        RunDirectoryBusy: it keeps the directory; the text says why, and what to do.
        NotSaved, UsageError: as `find_head` does.
    """
    channel = find_head(run_dir)
    if channel is None:
        client = _owner_if_told(run_dir).client
        if client is not None and is_stopped(client):  # it starts no other head
            raise _busy(run_dir, "stopped_client", client)
        return None
    process = HeldProcess.of_peer(channel)
    if process is None:
        channel.close()
        return None
    answer, fds = _ask(channel, asked)
    if isinstance(answer, ClientTaken):
        return FoundHead(channel, process, answer, *fds)
    with contextlib.closing(channel), contextlib.closing(process):
        _refuse(run_dir, answer, process, asked)
    return None


def _refuse(
    run_dir: RunDirectory,
    answer: ToClient | str | None,
    head: HeldProcess,
    asked: JobOptions | None,
) -> None:
    """Raise what a head means that lets nobody show its job, or that is silent."""
    match answer:
        case "silent" if _end_if_stopped(head, run_dir):
            words = f"it had no client, and its head, pid {head.pid}, was stopped"
            raise OwnerEnded(f"ended the job in {run_dir.path}: {words}")
        case "silent":
            raise _busy(run_dir, "silent", head.pid)
        case AnotherJob(job) if asked is not None:
            raise RunDirectoryBusy(another_job(run_dir, job, asked))
        case ClientRefused(pid):
            others = "attached" if asked is None else "another"
            raise _busy(run_dir, "stopped_client" if is_stopped(pid) else others, pid)
        case JobStarting():
            raise _busy(run_dir, "starting", head.pid)


def _busy(run_dir: RunDirectory, kind: str, pid: int) -> RunDirectoryBusy:
    words = _REFUSALS[kind].format(pid=pid)
    return RunDirectoryBusy(f"run directory {run_dir.path} belongs to {words}")


def another_job(run_dir: RunDirectory, its: Sequence[object], asked: JobOptions) -> str:
    """Return in words how the request differs from the job that lives; ``its`` as `_ask` asks."""
    _, script, *argv = map(str, its)
    if asked.fresh:
        difference = "which --fresh would set aside"
    elif script != str(asked.script):
        difference = f"which runs another script, {script}"
    else:
        wanted, had = (shlex.join(words) or "none" for words in (asked.argv, argv))
        difference = f"which has other arguments of the script (its: {had}; asked for: {wanted})"
    return (
        f"run directory {run_dir.path} belongs to a job that lives without a client, and "
        f"{difference}; look at it with {run_dir.command('attach')}, or choose another --run-dir"
    )


def _end_if_stopped(head: HeldProcess, run_dir: RunDirectory) -> bool:
    """Kill a head that is stopped and that no client watches; its workers die with it.

    A batch system that suspends a job stops the client as well, which then still lives.
    """
    client = _owner_if_told(run_dir).client
    if client is None or is_alive(client) or not is_stopped(head.pid):
        return False
    head.kill()
    return head.has_ended(STOPPED_ENDS_WITHIN_S)


def _ask(channel: Channel, asked: JobOptions | None) -> tuple[ToClient | str | None, Sequence[int]]:
    """Return the answer and what comes along: "silent" without any in time, None if it goes."""
    job = None if asked is None else (asked.fresh, str(asked.script), *asked.argv)
    with contextlib.suppress(OSError):  # it may have answered and closed already
        channel.send(to_message(ShowJob(job)), (1, 2))
    bound = Bound(SHOWS_WITHIN_S)
    if not bound.wait(lambda left_s: select.select([channel], [], [], left_s)[0]):
        return "silent", ()
    line = None
    with contextlib.suppress(OSError):
        line = channel.receive()
    return (None, ()) if line is None else (_TO_CLIENT.decode(line), line.get(FDS, ()))


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
            if self._channel is None:
                self._channel = _connected(self._directory, _owner_if_told(self._directory))
            channel = self._channel
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
    directory: RunDirectory, order: AskSave | AskStop | AskScale, timeout_s: float, until: str
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
            channel = find_head(directory)
        except NobodyRuns as error:
            raise NotSaved(no_job(error, directory)) from error
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
    for who, pid in (("head", owner.pid), ("client", owner.client)):
        if pid is not None and is_stopped(pid):
            return (
                f"the {who} of the job in {path}, pid {pid}, is stopped; "
                f"let it go on with `kill -CONT {pid}`, then ask again"
            )
    return (
        f"the job in {path} {until} within {timeout_s:g} s; "
        "give a longer --timeout, or look at `holdfast report`"
    )
