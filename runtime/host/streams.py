"""stdout and stderr of the process that shows a job, which another client may exchange.

The head shows its own lines, the workers' output and the live line on the descriptors of its
client.  If both are the same terminal or file, one sink keeps their order.
"""

from __future__ import annotations

import os

from holdfast.runtime.system.line_sink import LineSink
from holdfast.runtime.system.witnessed_time import Bound

OUT, ERR = 1, 2


class Streams:
    """Owns a sink for each of both streams, or one for both."""

    def __init__(self) -> None:
        self._left: list[LineSink] = []
        self._sinks = _open()

    def __getitem__(self, fd: int) -> LineSink:
        """Return the sink of ``OUT`` or ``ERR``."""
        return self._sinks[fd]

    @property
    def dropped(self) -> int:
        """The number of lines that were not written."""
        return sum(sink.dropped for sink in {*self._sinks.values(), *self._left})

    def redirect(self) -> None:
        """Write to what our stdout and stderr are by now, even if a write to the old ones hangs."""
        before, self._sinks = set(self._sinks.values()), _open()
        for sink in before:
            sink.close(0.0)
        self._left += before

    def close(self, within_s: float) -> None:
        """Write what is left, but not for long."""
        bound = Bound(within_s)
        for sink in set(self._sinks.values()):
            sink.close(bound.left_s())


def _open() -> dict[int, LineSink]:
    err = LineSink(ERR)
    return {ERR: err, OUT: err if _are_the_same() else LineSink(OUT)}


def _are_the_same() -> bool:
    try:
        out, err = os.fstat(OUT), os.fstat(ERR)
    except OSError:
        return False
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)
