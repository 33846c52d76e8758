"""Signals as orders to the job: stop with a checkpoint, stop at once, save, or go on alone.

A batch system may send one order several times: to the process, to its group and to its
session.  So the same signal again within a second is the same order.  Another signal, or a
later one, is a second order, and that means "now".
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Callable, Collection
from enum import Enum

from holdfast.recovery.event import ExitCode
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.signals import SAVE_SIGNAL

STOPS = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGXCPU: ExitCode.TERMINATED,
}
_WATCHED = (*STOPS, signal.SIGUSR1, signal.SIGUSR2, SAVE_SIGNAL, signal.SIGHUP)
"""SIGUSR1 may ask for nothing; its default would end this process."""

_SAME_ORDER_WITHIN_S = {signal.SIGINT: 0.25, signal.SIGTERM: 1.0}
"""People press Ctrl-C twice faster than that only by mistake.

Any other signal asks for the same as before whenever it comes: SIGXCPU comes every second.
"""


class Order(Enum):
    """What a signal asks for."""

    STOP = "stop"
    SAVE = "save"
    GO_ON = "go on without a terminal"


class OrderSignals:
    """The handlers of this process, from its making until ``restore``."""

    def __init__(
        self,
        reactor: Reactor,
        obey: Callable[[Order, signal.Signals], None],
        clock: Callable[[], float] = time.monotonic,
        stops: Collection[signal.Signals] = tuple(STOPS),
    ) -> None:
        self._obey = obey
        self._stops = stops
        self._clock = clock
        self._heard_at: dict[signal.Signals, float] = {}
        self._before = {number: signal.getsignal(number) for number in _WATCHED}
        self._read, write = os.pipe()
        self._write = write
        os.set_blocking(self._read, False)
        os.set_blocking(write, False)
        signal.set_wakeup_fd(write)
        for number in _WATCHED:
            # A job that was started with nohup keeps ignoring what nohup ignores.
            if number == SAVE_SIGNAL or self._before[number] is not signal.SIG_IGN:
                signal.signal(number, _wake)
        reactor.watch(self._read, lambda: self.hear(os.read(self._read, 64)))

    def hear(self, numbers: bytes) -> None:
        """Turn signals into orders, in the order of their numbers; each one once."""
        now = self._clock()
        for number in sorted(set(numbers)):
            received = signal.Signals(number)
            if received in self._stops:
                if not self._is_the_same(received, now):
                    self._obey(Order.STOP, received)
            elif received in (signal.SIGUSR2, SAVE_SIGNAL):
                self._obey(Order.SAVE, received)
            elif received == signal.SIGHUP:
                self._obey(Order.GO_ON, received)

    def restore(self) -> None:
        """Give the process its former handlers back."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            # A late request must not end this process, and nobody should wait for it.
            signal.signal(number, signal.SIG_IGN if number == SAVE_SIGNAL else handler)
        os.close(self._read)
        os.close(self._write)

    def _is_the_same(self, received: signal.Signals, now: float) -> bool:
        before = self._heard_at.get(received)
        self._heard_at.setdefault(received, now)
        return before is not None and now - before < _SAME_ORDER_WITHIN_S.get(received, math.inf)


def _wake(_number: int, _frame: object) -> None:
    """Do nothing: the number is in the pipe by now."""
