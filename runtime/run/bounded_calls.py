"""Calls into a file system that may hang, made in order by a thread of their own.

A server that is gone lets a call hang for ever, and no signal ends it.  So a thread makes the
calls, and the caller waits for each of them, but not for long.  From the first call that takes too
long, nobody waits for any.  That ends when the thread has caught up and a number of calls in a row
were quick: a disk may be slow for days.  Calls queue meanwhile, up to a limit.

As long as the file system answers, a call is over when ``run`` returns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from holdfast.runtime.system.signals import blocked
from holdfast.runtime.system.witnessed_time import Bound, has_ended

WAITS_S = 1.0
_MOST_QUEUED = 10_000
_QUICK_IN_A_ROW = 20
_QUICK = 0.1
"""A call is quick that takes this part of the time that a caller would wait."""


class BoundedCalls:
    """Runs calls that raise nothing; starts its daemon thread with the first of them."""

    def __init__(
        self, name: str, waits_s: float | None = None, most_queued: int = _MOST_QUEUED
    ) -> None:
        """Let a caller wait ``waits_s`` for a call, ``WAITS_S`` by default."""
        self._name = name
        self._waits_s = WAITS_S if waits_s is None else waits_s
        self._most_queued = most_queued
        self._queue: deque[Callable[[], None]] = deque()
        self._changed = threading.Condition()
        self._taken = self._ended = self._quick_in_a_row = 0
        self._is_behind = self._is_closing = False
        self._thread: threading.Thread | None = None

    def run(self, call: Callable[[], None]) -> bool:
        """Run ``call`` and wait for its end, but not for long; False if it will never run."""
        with self._changed:
            if len(self._queue) >= self._most_queued:
                return False
            self._start()
            self._queue.append(call)
            self._taken += 1
            number = self._taken
            self._changed.notify_all()
            if not self._is_behind:
                self._is_behind = not Bound(self._waits_s).wait(
                    lambda left_s: self._changed.wait_for(lambda: self._ended >= number, left_s)
                )
            return True

    @property
    def is_behind(self) -> bool:
        """Whether a call takes too long, so that nobody waits for the calls after it."""
        return self._is_behind

    def close(self, within_s: float) -> None:
        """Let the thread end after the calls that wait, and wait for it ``within_s`` at most."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if self._thread is not None:
            has_ended(self._thread, Bound(within_s))

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            with blocked():  # signals are for the main thread, which may block them at its end
                self._thread.start()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._queue) or self._is_closing)
                if not self._queue:
                    return
                call = self._queue.popleft()
            began = time.monotonic()
            call()
            is_quick = time.monotonic() - began < _QUICK * self._waits_s
            with self._changed:
                self._ended += 1
                self._quick_in_a_row = self._quick_in_a_row + 1 if is_quick else 0
                if not self._queue and self._quick_in_a_row >= _QUICK_IN_A_ROW:
                    self._is_behind = False
                self._changed.notify_all()
