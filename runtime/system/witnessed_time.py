"""Time as a process has witnessed it: seconds in which it stood still do not count.

A whole job may be paused: by a batch system, a closed lid, a snapshot of its machine, a frozen
cgroup.  The clock of the host goes on meanwhile, so a process that wakes would find every bound
passed, and would accuse those that were paused with it.  No clock of the kernel stops with a
process.  But a process that runs looks again and again.  So each look counts the seconds since the
last one, but not more than a look can take.

There are three forms of one rule:

* ``witnessed_s`` is the clock of this process, for code that compares moments.  It is right as
  long as something looks about once a second: the loop of client or agent, the pulse of
  a worker;
* ``Bound`` is the bound of one wait, which is made in pieces;
* ``Stillness`` tells how long something has not changed.  It stands still with its watcher: a
  lease may have an owner that was paused with its taker.

All are late and never early.  Moments in records and messages are those of the host's clock.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

_LONGEST_LOOK_S = 1.25
"""A look counts as much at most: an idle agent looks once a second."""
_LOOKS_PER_LIMIT = 4
_PIECES_PER_LOOK = 2

_Found = TypeVar("_Found")


class WitnessedTime:
    """A clock that stands still with its process; threads may share it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_at = self._witnessed = clock()

    def __call__(self) -> float:
        """Look, and return the seconds; only differences have a meaning."""
        with self._lock:
            now = self._clock()
            self._witnessed += min(now - self._looked_at, _LONGEST_LOOK_S)
            self._looked_at = now
            return self._witnessed


witnessed_s = WitnessedTime()
"""The clock of this process."""


class Bound:
    """The bound of one wait, from now on; a look counts at most a quarter of it."""

    def __init__(self, limit_s: float, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or time.monotonic
        self._most_s = min(limit_s / _LOOKS_PER_LIMIT, _LONGEST_LOOK_S)
        self._left_s = limit_s
        self._looked_at = self._clock()

    def left_s(self) -> float:
        """Look, and return the seconds that are left, 0 once it has passed."""
        now = self._clock()
        self._left_s -= min(now - self._looked_at, self._most_s)
        self._looked_at = now
        return max(0.0, self._left_s)

    @property
    def has_passed(self) -> bool:
        """Whether nothing is left."""
        return not self.left_s()

    def wait(self, wait: Callable[[float], _Found]) -> _Found:
        """Call ``wait`` with a number of seconds until it finds something, or the bound has passed.

        Returns what it has found last.
        """
        while True:
            left_s = self.left_s()
            found = wait(min(left_s, self._most_s / _PIECES_PER_LOOK))
            if found or not left_s:
                return found


def has_ended(thread: threading.Thread, bound: Bound) -> bool:
    """Wait for the end of a thread; return whether it has ended within the bound."""

    def join(left_s: float) -> bool:
        thread.join(left_s)
        return not thread.is_alive()

    return bound.wait(join)


class Stillness:
    """Looks at something again and again; no clock but its own, which is never set, counts."""

    def __init__(self, clock: Callable[[], float] = witnessed_s) -> None:
        self._clock = clock
        self._seen: bytes | None = None
        self._since = 0.0

    def poll(self, read: Callable[[], bytes]) -> tuple[bytes, float]:
        """Return what ``read`` gives now, and for how many seconds at least it has been that.

        A call that takes long shortens this time: nobody knows when it has read.
        """
        began = self._clock()
        found = read()
        if found != self._seen:
            self._seen, self._since = found, self._clock()
        return found, max(0.0, began - self._since)
