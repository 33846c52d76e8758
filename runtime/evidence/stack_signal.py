"""The signal at which a worker writes the Python stacks of all its threads into its page.

The handler is C code (``faulthandler``): it needs no interpreter's lock, and runs in the middle
of a C call that never gives the lock back.  It interrupts no system call that can be restarted
(``SA_RESTART``).  The kernel tells whether a process has the handler, and whether it is done: a
thread in the handler has the signal blocked.  So no message and no reply is needed, and a
process without the handler is never sent a signal that would end it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal

from holdfast.runtime.system.heartbeat import STACKS_AT, HeartbeatPage
from holdfast.runtime.system.own_process import allow_reading
from holdfast.runtime.system.process_status import SignalState, signal_state

STACK_SIGNAL = signal.SIGRTMIN + 13
"""A real-time signal in the middle of the range, which no library that we know of takes."""


def listen(page: HeartbeatPage, agent: int) -> None:
    """Write all stacks into ``page`` at each ``STACK_SIGNAL`` from now on (worker only).

    ``agent`` and what it starts may read this process's memory, as py-spy does.
    """
    faulthandler.register(STACK_SIGNAL, file=page.fd, all_threads=True, chain=False)
    allow_reading(agent)


def ask(pid: int, page: HeartbeatPage) -> None:
    """Let the worker ``pid``, which must listen, write its stacks (agent only)."""
    os.lseek(page.fd, STACKS_AT, os.SEEK_SET)  # its descriptor is ours too, and so is the offset
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACK_SIGNAL)


def state_of(pid: int) -> SignalState:
    """Return what the kernel knows of ``STACK_SIGNAL`` in process ``pid``."""
    return signal_state(pid, STACK_SIGNAL)


def answer_in(page: HeartbeatPage) -> str:
    """Return the stacks that the worker has written since it was asked."""
    length = os.lseek(page.fd, 0, os.SEEK_CUR) - STACKS_AT
    return os.pread(page.fd, max(0, length), STACKS_AT).decode(errors="replace")
