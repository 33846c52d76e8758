"""Facts of the operating system about processes, and ways to end them for certain.

Only this file imports psutil and calls ``prctl``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import time
from collections.abc import Collection, Iterable

import psutil

from holdfast.runtime.system.process_status import state_of

UNKILLABLE_AFTER_S = 10.0
"""A process that SIGKILL does not end within this time hangs in the kernel: a dead network
disk, a driver.  It may hang for ever, and runs no more code of its own."""

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_PTRACER = 0x59616D61


def usable_cores() -> int:
    """Return the number of cores that this process may run on; at least 1.

    It is the size of the affinity mask, limited to the whole cores that the process's
    cgroup grants (cpu.max of cgroup v2).  Containers set that limit, and the mask does not
    show it.
    """
    cores = len(psutil.Process().cpu_affinity() or ()) or psutil.cpu_count() or 1
    granted = _granted_cores()
    return max(1, min(cores, int(granted))) if granted else cores


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (prctl(2))."""
    _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def die_with_parent(parent: int) -> None:
    """Let the kernel SIGKILL this process as soon as ``parent`` is dead.

    Ends the process at once when ``parent`` is not (or no longer) its parent.
    The setting follows the parent's *thread* that forked, and is lost when the
    process is handed to another parent: call it last.
    """
    _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def name_process(name: str) -> None:
    """Set the name that ps and top show; Linux keeps the first 15 bytes."""
    _prctl(_PR_SET_NAME, ctypes.create_string_buffer(os.fsencode(name)[:15]))


def allow_many_files() -> int:
    """Raise this process's limit of open files to what its user may have; return the old one."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return before


def allow_files(count: int) -> None:
    """Set this process's limit of open files to ``count``, or to what its user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = count if most == resource.RLIM_INFINITY else min(count, most)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def thread_count() -> int:
    """Return the number of threads of this process, those of C libraries included."""
    return len(os.listdir("/proc/self/task"))


def is_single_threaded(within_s: float) -> bool:
    """Return whether one thread is left; threads that are just ending get ``within_s``.

    Joining a thread returns a moment before the kernel has taken it off the list.
    """
    deadline = time.monotonic() + within_s
    while thread_count() > 1:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def is_alive(pid: int) -> bool:
    """Return whether ``pid`` runs; a zombie does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_stopped(pid: int) -> bool:
    """Return whether ``pid`` is stopped by a signal or a tracer, and so runs no code."""
    return state_of(pid) in ("T", "t")


def hangs_in_kernel(pid: int) -> bool:
    """Return whether ``pid`` is in a call that no signal interrupts."""
    return state_of(pid) == "D"


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


def allow_reading(reader: int) -> None:
    """Let process ``reader`` and its descendants read this one's memory, where Yama forbids it.

    It changes nothing where the kernel has no Yama, and asks nobody where it has.
    """
    with contextlib.suppress(OSError):
        _prctl(_PR_SET_PTRACER, ctypes.c_ulong(reader))


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
    deadline = time.monotonic() + timeout_s
    ends: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            ends[os.pidfd_open(pid)] = pid
    waiting = select.poll()
    for end in ends:
        waiting.register(end, select.POLLIN)
    while ends:
        left_s = deadline - time.monotonic()
        ready = waiting.poll(max(0.0, left_s) * 1000)
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


def _granted_cores() -> float | None:
    try:
        with open("/sys/fs/cgroup/cpu.max") as limits:
            quota, period = limits.read().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _prctl(option: int, argument: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    unused = ctypes.c_ulong(0)
    if libc.prctl(option, argument, unused, unused, unused) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}) failed: {os.strerror(number)}")
