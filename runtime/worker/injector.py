"""Strikes this worker at the moments of the fault plan.

The plan decides (`recovery.fault`).  Here each kind of fault happens for real, because a
death looks different to MPI for each cause.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from holdfast.recovery.fault import FaultKind, FaultPlan, Site, Visit
from holdfast.recovery.world import WorkerId


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
        plan: FaultPlan,
        *,
        announce: Callable[[Visit, FaultKind], None],
        strike: Callable[[FaultKind], None] | None = None,
    ) -> None:
        self._worker = worker
        self._plan = plan
        self._announce = announce
        self._strike = strike or _strike
        self._visits: Counter[tuple[int, Site]] = Counter()
        self.is_idle = not plan.faults

    def visit(self, step: int, site: Site) -> None:
        """Pass ``site`` while working on ``step``; may not return."""
        if self.is_idle:
            return
        self._visits[step, site] += 1
        visit = Visit(self._worker, step, site, self._visits[step, site])
        kind = self._plan.due(visit)
        if kind is not None:
            self._announce(visit, kind)
            self._strike(kind)


_MUTEX_BYTES = 64
"""More than a pthread_mutex_t has on any Linux."""


def _strike(kind: FaultKind) -> None:
    _STRIKES[kind]()


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _exit() -> NoReturn:
    os._exit(1)


def _raise() -> NoReturn:
    raise InjectedFault("the fault plan asked for this exception")


def _segfault() -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    ctypes.string_at(0)


def _hold_gil() -> None:
    """Wait for ever in a C call that, unlike most, keeps the interpreter's lock.

    No signal ends it, not even the one that asks for a stack: a thread that locks a mutex
    twice waits for itself (pthread_mutex_lock(3p)).
    """
    mutex = ctypes.create_string_buffer(_MUTEX_BYTES)  # all zero: PTHREAD_MUTEX_INITIALIZER
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


_STRIKES: dict[FaultKind, Callable[[], None]] = {
    FaultKind.KILL: _kill,
    FaultKind.STOP: _stop,
    FaultKind.EXIT: _exit,
    FaultKind.RAISE: _raise,
    FaultKind.SEGFAULT: _segfault,
    FaultKind.GIL: _hold_gil,
}
