"""Strikes this worker at the moments of the fault plan.

The plan decides (`recovery.fault`).  Here each kind of fault happens for real, because a
death looks different to MPI for each cause.
"""

from __future__ import annotations

import ctypes
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping

from holdfast.recovery.fault import FaultKind, Site, Visit
from holdfast.recovery.world import WorkerId
from holdfast.runtime.system.processes import children_of, name_of

_MUTEX_BYTES = 64
"""More than a pthread_mutex_t has on any Linux."""

_TOLD_WITHIN_S = 0.5
"""An agent that is to be struck needs a moment to pass the announcement on."""


_WATCHDOG = "holdfast-watch"
"""How the agent of another host names the process beside it."""


class InjectedFault(Exception):
    """The exception of a ``raise`` fault."""


class FaultInjector:
    """Counts a worker's visits to the sites of a step and strikes at the planned one.

    ``strike`` makes a fault happen.  Simulations, whose workers are threads, bring a
    ``strike`` of their own.
    """

    def __init__(
        self,
        worker: WorkerId,
        planned: Mapping[Visit, FaultKind],
        *,
        announce: Callable[[Visit, FaultKind], None],
        strike: Callable[[FaultKind], None] | None = None,
    ) -> None:
        self._worker = worker
        self._planned = planned
        self._announce = announce
        self._strike = strike or _strike
        self._visits: Counter[tuple[int, Site]] = Counter()
        self.is_idle = not planned

    def visit(self, step: int, site: Site) -> None:
        """Pass ``site`` while working on ``step``; may not return."""
        if self.is_idle:
            return
        self._visits[step, site] += 1
        visit = Visit(self._worker, step, site, self._visits[step, site])
        kind = self._planned.get(visit)
        if kind is not None:
            self._announce(visit, kind)
            if kind.is_of_host:
                time.sleep(_TOLD_WITHIN_S)
            self._strike(kind)


def _strike(kind: FaultKind) -> None:
    match kind:
        case FaultKind.KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        case FaultKind.STOP:
            os.kill(os.getpid(), signal.SIGSTOP)
        case FaultKind.EXIT:
            os._exit(1)
        case FaultKind.RAISE:
            raise InjectedFault("the fault plan asked for this exception")
        case FaultKind.SEGFAULT:
            signal.signal(signal.SIGSEGV, signal.SIG_DFL)
            ctypes.string_at(0)
        case FaultKind.GIL:
            _hold_gil()
        case FaultKind.LOSE:
            os.kill(os.getppid(), signal.SIGKILL)  # the agent, whose workers die with it
            signal.pause()
        case FaultKind.CUT:
            os.kill(os.getppid(), signal.SIGSTOP)
        case FaultKind.FREEZE:
            _freeze_host()


def _freeze_host() -> None:
    """Stop the agent and its children: pool, writer and workers, this one last.

    The watchdog is left alone: a host that stands still for good must leave nothing behind.
    """
    agent, me = os.getppid(), os.getpid()
    os.kill(agent, signal.SIGSTOP)
    for pid in children_of(agent):
        if pid != me and name_of(pid) != _WATCHDOG:
            os.kill(pid, signal.SIGSTOP)
    os.kill(me, signal.SIGSTOP)


def _hold_gil() -> None:
    """Wait for ever in a C call that, unlike most, keeps the interpreter's lock.

    No signal ends it, not even the one that asks for a stack: a thread that locks a mutex
    twice waits for itself (pthread_mutex_lock(3p)).
    """
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)  # all zero: PTHREAD_MUTEX_INITIALIZER
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
