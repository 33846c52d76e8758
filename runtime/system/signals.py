"""The signals that a batch system sends to every process of a job.

Schedulers do not know which process of a job decides: ``scancel``, systemd, PBS and a closed
terminal signal the process, its group, its session or its cgroup.  Only a job's client and its
agents, of which the head is one, act on them.  Every other process must outlive them, because the
job still has a checkpoint to write.  How depends on what the process starts:

* mpiexec, pool and writer are started with the signals *blocked*.  Children inherit
  that, so there is no moment at which a signal would end them;
* a worker gives them a handler that does nothing.  Programs that its script starts have the
  default again after execve(2), and processes that it forks get it back: a script that
  ends its helpers with SIGTERM still can.

Only SIGKILL, and faults of the process itself, end a process that does so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import threading
from collections.abc import Iterator

SENT_BY_BATCH_SYSTEMS = frozenset(
    {
        signal.SIGHUP,
        signal.SIGINT,
        signal.SIGTERM,
        signal.SIGUSR1,
        signal.SIGUSR2,
        signal.SIGXCPU,
    }
)


@contextlib.contextmanager
def blocked() -> Iterator[None]:
    """Block these signals in this thread, and for good in every child that begins meanwhile."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SENT_BY_BATCH_SYSTEMS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_thread(thread: threading.Thread) -> None:
    """Start a thread that takes none of these signals: they are for the main thread.

    Raises ``OSError`` if the system has no thread to spare.
    """
    try:
        with blocked():
            thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, str(error)) from error


def block() -> None:
    """Let no such signal change the exit code of a process that is about to end."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SENT_BY_BATCH_SYSTEMS)


def unblock() -> None:
    """Take these signals again, in a process that has its handlers by now."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SENT_BY_BATCH_SYSTEMS)


def write_in_background() -> None:
    """Let no terminal stop this process for what it writes as a background job.

    A terminal with ``stty tostop`` would, and a job that stands still watches nobody.
    """
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a handler would be called for ever


def take_no_notice() -> None:
    """Let these signals do nothing to this process; to what it starts they do what they do.

    Call it in the main thread, before the script may set handlers of its own.
    """
    for number in SENT_BY_BATCH_SYSTEMS:
        signal.signal(number, _do_nothing)
        signal.siginterrupt(number, False)
    os.register_at_fork(after_in_child=_have_defaults)
    unblock()


def _do_nothing(_number: int, _frame: object) -> None:
    """Return to what the process was doing."""


def _have_defaults() -> None:
    """Give a forked child the defaults back, where the script has set nothing else."""
    for number in SENT_BY_BATCH_SYSTEMS:
        if signal.getsignal(number) is _do_nothing:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
