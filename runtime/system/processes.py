"""Other processes: what Linux says of them, and ways to signal them and to end them for certain.

A process id may be used again as soon as its process was waited for.  A descriptor (pidfd) stands
for one process for good, child or not.

A child inherits the environment of its parent.  So a *mark* that is given to one process finds
all its descendants, those that were adopted by others included.  No process of anybody else
bears it.  Needs Linux's ``/proc``.

Peers and helpers may stand still.  Peers watch each other: any message is a sign of life.  Workers
prove that they live by counting, and a process that owes an answer has a deadline.  mpiexec and
the guards can do neither, and an idle pool or writer owes nothing.  For them the kernel's word is
enough: a process in the state ``T`` (stopped by a signal or a tracer) runs no code, answers nobody,
and does not end by itself.  They are judged like a worker whose counter stands still, so a watcher
that was away itself accuses nobody.

Only this file imports psutil.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from holdfast.recovery.detector import ChangeDetector
from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.witnessed_time import Bound

_STARTED, _LAST_CORE = 19, 36
"""Places in proc_pid_stat(5), counted from the field after the name."""

UNKILLABLE_AFTER_S = 10.0
"""A process that SIGKILL does not end within this time hangs in the kernel: a dead network
disk, a driver.  It may hang for ever, and runs no more code of its own."""

_EXEC_WITHIN_S = 1.0
"""A program is loaded within milliseconds, unless the disk that it is on hangs."""
_LOOK_S = 0.001


@dataclass(frozen=True, slots=True)
class SignalState:
    """What the kernel knows of a process, and of one signal in it."""

    state: str = ""
    """The letter of proc_pid_stat(5); "" if the process is gone."""
    is_caught: bool = False
    """Whether the process has a handler for the signal."""
    is_pending: bool = False
    """Whether it was sent to the process, and no thread has taken it yet."""
    blocked_in: frozenset[str] = frozenset()
    """The threads that have it blocked: for ever, or because they are in its handler."""

    @property
    def is_gone(self) -> bool:
        """Whether no memory of the process is left."""
        return self.state in ("", "Z", "X")

    @property
    def runs_no_code(self) -> bool:
        """Whether the process is stopped, or hangs in the kernel."""
        return self.state in ("T", "t", "D")


def signal_state(pid: int, number: int) -> SignalState:
    """Return the state of process ``pid`` and of signal ``number`` in it (proc_pid_status(5))."""
    bit = 1 << (number - 1)
    try:
        whole = _fields(f"/proc/{pid}/status")
        # In this order: a signal that is not pending any more is in its handler, or handled.
        blocked_in = frozenset(
            thread
            for thread in os.listdir(f"/proc/{pid}/task")
            if int(_fields(f"/proc/{pid}/task/{thread}/status")["SigBlk"], 16) & bit
        )
    except (OSError, KeyError):
        return SignalState()
    return SignalState(
        whole["State"][:1],
        is_caught=bool(int(whole["SigCgt"], 16) & bit),
        is_pending=bool(int(whole["ShdPnd"], 16) & bit),
        blocked_in=blocked_in,
    )


def last_core(pid: int) -> int | None:
    """Return the core on which the main thread of ``pid`` ran last; also of a zombie."""
    fields = _after_name(pid)
    return int(fields[_LAST_CORE]) if len(fields) > _LAST_CORE else None


def age_s(pid: int) -> float:
    """Return the seconds since the process began, 0 if it is gone."""
    fields = _after_name(pid)
    if len(fields) <= _STARTED:
        return 0.0
    started_s = int(fields[_STARTED]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def state_of(pid: int) -> str:
    """Return the letter of the process's state in proc_pid_stat(5), "" if it is gone."""
    return next(iter(_after_name(pid)), "")


def is_alive(pid: int) -> bool:
    """Return whether ``pid`` runs; a zombie does not."""
    return state_of(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    """Return whether ``pid`` is stopped by a signal or a tracer, and so runs no code."""
    return state_of(pid) in ("T", "t")


def hangs_in_kernel(pid: int) -> bool:
    """Return whether ``pid`` is in a call that no signal interrupts."""
    return state_of(pid) == "D"


def characters_read(pid: int) -> int:
    """Return the bytes that the process has got from ``read`` and its like (proc_pid_io(5))."""
    try:
        return int(_fields(f"/proc/{pid}/io")["rchar"])
    except (OSError, KeyError):
        return 0


def ancestors_names() -> tuple[str, ...]:
    """Return the names of the processes that this one descends from, as far as they are seen."""
    names, pid = [], os.getppid()
    while pid:
        try:
            fields = _fields(f"/proc/{pid}/status")
            names.append(fields["Name"])
            pid = int(fields["PPid"])
        except (OSError, KeyError, ValueError):
            break
    return tuple(names)


def _after_name(pid: int) -> list[str]:
    """Return the fields of proc_pid_stat(5) after the name, none if the process is gone."""
    return _read(pid, "stat").rpartition(b") ")[2].decode().split()


def _fields(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8", errors="replace") as status:
        return {name: value.strip() for name, _, value in (line.partition(":") for line in status)}


def resident_bytes(pid: int) -> int | None:
    """Return the resident memory of ``pid``, None if it cannot be read."""
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except (psutil.Error, OSError):  # gone, or this process has no descriptor left
        return None


def count_open_files(pid: int) -> tuple[int, int] | None:
    """Return the number of open files of ``pid`` and its limit, None if they cannot be read."""
    try:
        process = psutil.Process(pid)
        most, _ = process.rlimit(psutil.RLIMIT_NOFILE)
        return process.num_fds(), most
    except (psutil.Error, OSError):
        return None


def count_threads_of_user(user: int) -> tuple[int, int] | None:
    """Return the number of threads of ``user`` and this process's limit of them (RLIMIT_NPROC).

    None where there is no limit: root has none.
    """
    most, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if most == resource.RLIM_INFINITY or user == 0:
        return None
    found = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.uids().real == user:
                found += process.num_threads()
    return found, most


def kill_group(leader: int) -> None:
    """SIGKILL ``leader`` and its process group, if it has made one of its own already.

    ``leader`` must be a child that was not waited for yet, so that no other process can
    have its number.
    """
    os.kill(leader, signal.SIGKILL)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


def children_of(pid: int) -> tuple[int, ...]:
    """Return the children of a process, without their own; none if it is gone."""
    with contextlib.suppress(psutil.Error):
        return tuple(child.pid for child in psutil.Process(pid).children())
    return ()


def name_of(pid: int) -> str:
    """Return the name of a process as ``ps`` shows it, "" if it is gone."""
    return _read(pid, "comm").decode(errors="replace").strip()


def kill_tree(pid: int) -> None:
    """SIGKILL ``pid``, a child of this process, and all its descendants; wait for none.

    The root is stopped first, and the tree is read again until it holds no new process.  So
    a process that forks meanwhile does not escape.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        root.suspend()
        killed: set[int] = set()
        while fresh := [p for p in root.children(recursive=True) if p.pid not in killed]:
            for process in fresh:
                killed.add(process.pid)
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        root.kill()


def reap_others(ours: Collection[int | None]) -> None:
    """Reap every ended child but ``ours``; stop at one of ours that its owner has yet to see."""
    with contextlib.suppress(ChildProcessError):
        while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            if ended.si_pid in ours:
                return
            os.waitpid(ended.si_pid, 0)


def wait_all_ended(pids: Iterable[int], timeout_s: float) -> tuple[int, ...]:
    """Wait until all of ``pids`` have ended; return the ones still alive after ``timeout_s``.

    They need not be children, and none of them is reaped.
    """
    bound = Bound(timeout_s)
    ends: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            ends[os.pidfd_open(pid)] = pid
    waiting = select.poll()
    for end in ends:
        waiting.register(end, select.POLLIN)
    while ends:
        ready = bound.wait(lambda left_s: waiting.poll(1000 * left_s))
        if not ready:
            break
        for end, _ in ready:
            waiting.unregister(end)
            os.close(end)
            del ends[end]
    for end in ends:
        os.close(end)
    return tuple(ends.values())


def describe_status(status: int) -> str:
    """Return the end of a process in words: ``exit 3``, or ``signal SIGKILL`` for -9."""
    if status >= 0:
        return f"exit {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


class HeldProcess:
    """One process that can be signalled and waited for."""

    def __init__(self, pid: int) -> None:
        """Hold the process that has the number ``pid`` now; raises ``OSError`` if none has."""
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    @staticmethod
    def of_peer(channel: Channel) -> HeldProcess | None:
        """Return the process that has connected by ``channel``, None if it is gone already."""
        try:
            process = HeldProcess(channel.peer_pid)
        except OSError:
            return None
        # If its connection is open still, it lives, and the number is its own.
        waiting = select.poll()
        waiting.register(channel, select.POLLRDHUP)
        if waiting.poll(0):
            process.close()
            return None
        return process

    def kill(self) -> None:
        """SIGKILL the process, if it still lives."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def fileno(self) -> int:
        """Return the descriptor, which is readable when the process has ended."""
        return self._descriptor

    def has_ended(self, within_s: float) -> bool:
        """Wait for its end, at most ``within_s``; return whether it has ended."""
        waiting = [self._descriptor]
        return bool(Bound(within_s).wait(lambda left_s: select.select(waiting, [], [], left_s)[0]))

    def close(self) -> None:
        """Let go of the process."""
        os.close(self._descriptor)


def marked_processes(mark: str) -> dict[int, str]:
    """Return the name of every living process with ``mark`` (``NAME=value``), by process id.

    A zombie has no mark.
    """
    found = {}
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit() and bears_mark(int(directory.name), mark):
            with contextlib.suppress(OSError):
                found[int(directory.name)] = (directory / "comm").read_text().strip()
    return found


def bears_mark(pid: int, mark: str) -> bool:
    """Return whether a process was started with ``mark``."""
    return mark.encode() in variables_of(pid)


def variables_of(pid: int) -> list[bytes]:
    """Return the variables of a process, none if it has ended or is another user's.

    In the midst of an ``exec`` it shows none for a moment, which is waited for.
    """
    bound = Bound(_EXEC_WITHIN_S)
    while not (found := _read(pid, "environ")) and _is_within_exec(pid):
        if bound.has_passed:
            break
        time.sleep(_LOOK_S)
    return (found or _read(pid, "environ")).split(b"\0")


def _is_within_exec(pid: int) -> bool:
    """Whether a process has a new program, but no arguments of that yet (``fs/exec.c``).

    A zombie and a thread of the kernel have no program.
    """
    try:
        os.readlink(f"/proc/{pid}/exe")
    except OSError:
        return False
    return not _read(pid, "cmdline")


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb", buffering=0) as file:  # an agent reads often
            return file.read()
    except OSError:
        return b""


def signal_marked(pid: int, mark: str, *numbers: signal.Signals) -> bool:
    """Send signals to ``pid`` if it still is the process that bears ``mark``; return whether."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            if bears_mark(pid, mark):
                for number in numbers:
                    signal.pidfd_send_signal(descriptor, number)
                return True
        finally:
            os.close(descriptor)
    return False


SHORTEST_SILENCE_S = 5.0
"""Peers may be silent to each other for as long, even if workers may not."""


class PeerSilence:
    """For how long the process at the other end of a connection has said nothing."""

    def __init__(self, heartbeat_timeout_s: float) -> None:
        limit_s = max(heartbeat_timeout_s, SHORTEST_SILENCE_S)
        self._detector: ChangeDetector[str] = ChangeDetector(limit_s)
        self._heard = 0

    def heard(self) -> None:
        """Take note that the peer has sent something."""
        self._heard += 1

    def poll(self, now: float) -> float | None:
        """Return for how long the peer has been silent, None while that is not too long."""
        self._detector = self._detector.observe({"peer": self._heard}, now)
        return self._detector.beyond.get("peer")


class StoppedProcesses:
    """For how long each watched process has been stopped."""

    def __init__(self, limit_s: float) -> None:
        self._detector: ChangeDetector[int] = ChangeDetector(limit_s)
        self._polls = 0

    def poll(self, pids: Iterable[int], now: float) -> dict[int, float]:
        """Return the seconds of standstill of those of ``pids`` that are beyond the limit."""
        self._polls += 1
        # A stopped process shows the same count at each poll; a running one never does.
        views = {pid: -1 if is_stopped(pid) else self._polls for pid in pids}
        self._detector = self._detector.observe(views, now)
        return self._detector.beyond


def kill_standing_parent(parent: int) -> None:
    """SIGKILL the process that has started this one, if it was stopped ever since.

    It owns the run directory, and nobody could have that before it is woken.
    """
    if os.getppid() == parent and is_stopped(parent):
        os.kill(parent, signal.SIGKILL)


def kill_peer(channel: Channel, *, unless: int) -> None:
    """SIGKILL the process at the other end, unless its id is ``unless``."""
    process = HeldProcess.of_peer(channel)
    if process is not None:
        if process.pid != unless:
            process.kill()
        process.close()
