"""What Linux says of other processes, and ways to end them for certain.

Only this file imports psutil.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
from collections.abc import Collection, Iterable

import psutil

from holdfast.runtime.system.witnessed_time import Bound

UNKILLABLE_AFTER_S = 10.0
"""A process that SIGKILL does not end within this time hangs in the kernel: a dead network
disk, a driver.  It may hang for ever, and runs no more code of its own."""


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
