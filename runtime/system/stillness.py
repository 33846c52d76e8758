"""How long something has not changed, by the watcher's own clock.

It stands still with the watcher: a lease may have an owner that was paused with its taker.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.runtime.system.witnessed_time import witnessed_s


class Stillness:
    """Looks at something again and again; no clock but its own, which is never set, counts."""

    def __init__(self, clock: Callable[[], float] = witnessed_s) -> None:
        self._clock = clock
        self._seen: bytes | None = None
        self._since = 0.0

    def look(self, read: Callable[[], bytes]) -> tuple[bytes, float]:
        """Return what ``read`` gives now, and for how many seconds at least it has been that.

        A call that takes long shortens this time: nobody knows when it has read.
        """
        began = self._clock()
        found = read()
        if found != self._seen:
            self._seen, self._since = found, self._clock()
        return found, max(0.0, began - self._since)
