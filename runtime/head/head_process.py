"""A head as its client sees it: a process that was started or found, and a channel to talk over.

A client starts the head of its job, or finds that of a client that is gone: the lease of the
run directory names the head's socket.  Either way it asks every now and then whether the head still
answers.  A head that stands still is killed, and its workers with it: nobody else could tell
deaths from silence.
"""

from __future__ import annotations

import contextlib
import os
import select
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.errors import RecoveryImpossible, RunDirectoryBusy
from holdfast.runtime.head.visits import (
    AnotherJob,
    ClientPing,
    ClientRefused,
    ClientTaken,
    JobStarting,
    ShowJob,
    ToClient,
)
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import FDS, Channel, MessageKinds, connect, to_message
from holdfast.runtime.system.own_process import by_env, has_ended, module_command
from holdfast.runtime.system.owned_directory import SOCKET_NAME, make_again
from holdfast.runtime.system.processes import (
    SHORTEST_SILENCE_S,
    HeldProcess,
    PeerSilence,
    StoppedProcesses,
    is_alive,
    is_stopped,
)
from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import Bound, witnessed_s

_IS_PLAIN = bool(os.environ.get("NO_COLOR"))
"""Whether the user of this client wants no colours (no-color.org)."""
_MESSAGES: MessageKinds[ToClient] = MessageKinds(ToClient)

_CONNECT_WITHIN_S = 60.0
"""A cold virtual environment on a network file system takes that long."""
_RETRY_S = 0.005
_STARTS = 3
"""A head that is killed or stopped before it listens is started again, as it is later."""
_STARTS_WITHIN_S, _STARTED_AGAIN_AFTER_S = 30.0, 0.5
_END_WITHIN_S = 30.0
"""The last save may still be written; a head that hangs is killed."""
_STOPPED_ENDS_WITHIN_S = 10.0
ANSWERS_WITHIN_S = 15.0
"""A busy machine may need that long."""

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


@dataclass(frozen=True, slots=True)
class HeadTerms:
    """The terms of a head's start; ``lease`` is a descriptor that it keeps open."""

    directory: Path
    """Its private directory in memory, which it removes at its end."""
    cwd: Path
    environment: Mapping[str, str]
    heartbeat_timeout_s: float
    preload: tuple[str, ...]
    lease: int
    verbose: bool

    def command(self) -> list[str]:
        """Return the head's command line."""
        return [
            *module_command("holdfast.runtime.head"),
            *("--directory", str(self.directory)),
            # The head may begin after this process has died, and cannot ask for its old parent.
            *("--parent", str(os.getpid())),
            *("--heartbeat-timeout", str(self.heartbeat_timeout_s)),
            *("--preload", ",".join(self.preload)),
            *("--lease-fd", str(self.lease)),
            *(["--verbose"] if self.verbose else []),
        ]


class HeadProcess:
    """A running head; ``child`` if this process has started it."""

    def __init__(
        self,
        channel: Channel,
        process: HeldProcess,
        heartbeat_timeout_s: float,
        child: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self.channel = channel
        self._process = process
        self._child = child
        self._silence = PeerSilence(heartbeat_timeout_s)

    @property
    def pid(self) -> int:
        """The process id of the head."""
        return self._process.pid

    @property
    def child(self) -> int | None:
        """The process id of a head that this process has started."""
        return None if self._child is None else self._child.pid

    def heard(self) -> None:
        """Take note that the head has sent something."""
        self._silence.heard()

    def silence_s(self, now: float, columns: int) -> float | None:
        """Ask for a sign of life; return for how long there was none, if that is too long.

        The head hears with it how many ``columns`` a live line may have on this terminal.
        """
        self.channel.post(to_message(ClientPing(columns, _IS_PLAIN)))
        return self._silence.poll(now)

    def kill(self) -> None:
        """SIGKILL the head; the kernel does the same to its workers, pool, writer and mpiexec."""
        self._process.kill()

    def end(self) -> None:
        """Wait for the end of a head whose job is over; kill one that does not end."""
        self.channel.close()
        if not self._process.has_ended(_END_WITHIN_S):
            self.kill()
            self._process.has_ended(_STOPPED_ENDS_WITHIN_S)
        self._process.close()
        if self._child is not None:
            has_ended(self._child, 1.0)


def begin_head(terms: HeadTerms) -> subprocess.Popen[bytes]:
    """Start a head, in a session of its own, and do not wait for it.

    Raises:
        OSError: the system has no process or descriptor to spare.
    """
    with blocked():  # until it has handlers of its own
        return subprocess.Popen(
            by_env(terms.command()),
            # Scripts make vocabularies from sets of words, in the order of their hashes.
            env={"PYTHONHASHSEED": "0", **terms.environment},
            cwd=terms.cwd,
            stdin=subprocess.DEVNULL,
            pass_fds=(terms.lease,),
            start_new_session=True,
        )


def connect_to_head(terms: HeadTerms, begun: subprocess.Popen[bytes] | None = None) -> HeadProcess:
    """Return a head that listens, started now unless one was ``begun`` with these terms.

    One that is struck before it listens is followed by another one.  A system that has nothing to
    spare is asked again for a while.

    Raises:
        RecoveryImpossible: it ended or did not answer, or cannot be started.
    """
    bound, starts = Bound(_STARTS_WITHIN_S), 0
    while True:
        try:
            make_again(terms.directory)  # the last one may have removed it
            child = begun or begin_head(terms)
        except OSError as error:
            if bound.has_passed:
                raise RecoveryImpossible(
                    f"no agent of this host can be started: {error}; remove the cause, then run "
                    "again: the run goes on from its newest checkpoint"
                ) from error
            time.sleep(_STARTED_AGAIN_AFTER_S)
            continue
        starts += 1
        channel = _connected(child, terms)
        process = None if channel is None else HeldProcess.of_peer(channel)
        if channel is not None and process is not None:
            return HeadProcess(channel, process, terms.heartbeat_timeout_s, child)
        begun, is_struck = None, (child.poll() or 0) < 0
        child.kill()
        has_ended(child, _STOPPED_ENDS_WITHIN_S)
        if not is_struck or starts == _STARTS:
            break
    raise RecoveryImpossible(
        f"the agent of this host did not start (exit code {child.poll()}); "
        "its messages are above; run `holdfast doctor`"
    )


def _connected(child: subprocess.Popen[bytes], terms: HeadTerms) -> Channel | None:
    """Return a channel as soon as the head listens; None if it has ended or does not."""
    path = terms.directory / SOCKET_NAME
    bound = Bound(_CONNECT_WITHIN_S)
    stopped = StoppedProcesses(max(terms.heartbeat_timeout_s, SHORTEST_SILENCE_S))
    while child.poll() is None and not bound.has_passed:
        try:
            return connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(_RETRY_S)
        if stopped.poll([child.pid], witnessed_s()):
            child.kill()
            has_ended(child, _STOPPED_ENDS_WITHIN_S)
            break
    return None


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
    """Return the head of the job in ``run_dir``, for this process to show; None without one here.

    A request of another script, or for a fresh run, attaches to no job.

    Raises:
        OwnerEnded: it was ended.
        RunDirectoryBusy: it keeps the directory; the text says why, and what to do.
    """
    path = run_dir.agent_socket()
    if path is None:
        return None
    try:
        channel = connect(path)
    except OSError:
        client = _client_of(run_dir)
        if client is not None and is_stopped(client):  # it starts no other head
            raise _busy(run_dir, "stopped_client", client) from None
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


def _client_of(run_dir: RunDirectory) -> int | None:
    """Return the process that shows the job, as the lease names it."""
    try:
        return int(run_dir.lease_owner()["client"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
        f"{difference}; "
        f"look at it with `holdfast attach {shlex.quote(str(run_dir.path))}`, or choose "
        "another --run-dir"
    )


def _end_if_stopped(head: HeldProcess, run_dir: RunDirectory) -> bool:
    """Kill a head that is stopped and that no client watches; its workers die with it.

    A batch system that suspends a job stops the client as well, which then still lives.
    """
    client = _client_of(run_dir)
    if client is None or is_alive(client) or not is_stopped(head.pid):
        return False
    head.kill()
    return head.has_ended(_STOPPED_ENDS_WITHIN_S)


def _ask(channel: Channel, asked: JobOptions | None) -> tuple[ToClient | str | None, Sequence[int]]:
    """Return the answer and what comes along: "silent" without any in time, None if it goes."""
    job = None if asked is None else (asked.fresh, str(asked.script), *asked.argv)
    with contextlib.suppress(OSError):  # it may have answered and closed already
        channel.send(to_message(ShowJob(job)), (1, 2))
    bound = Bound(ANSWERS_WITHIN_S)
    if not bound.wait(lambda left_s: select.select([channel], [], [], left_s)[0]):
        return "silent", ()
    line = None
    with contextlib.suppress(OSError):
        line = channel.receive()
    return (None, ()) if line is None else (_MESSAGES.decode(line), line.get(FDS, ()))
