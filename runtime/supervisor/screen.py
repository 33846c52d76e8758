"""A job's stdout and stderr: lines that nobody waits for, and a live line on a terminal.

Progress goes to stdout, where Keras prints it, and all else to stderr.  The live line is
drawn on stderr.  If both are the same terminal or file, one sink keeps their order.  Before
a job has a screen, and after it, `say` writes single lines.
"""

from __future__ import annotations

import contextlib
import os

from holdfast.runtime.system.line_sink import LineSink

_OUT, _ERR = 1, 2
_LAST_LINES_WITHIN_S = 2.0
"""A terminal that takes nothing may not keep a job from ending."""


class Screen:
    """Owns the sinks of both streams.

    Args:
        may_draw: whether a live line is wanted at all.
    """

    def __init__(self, *, may_draw: bool = False) -> None:
        self._err = LineSink(_ERR)
        self._out = self._err if _are_the_same() else LineSink(_OUT)
        self._may_draw = may_draw and os.isatty(_ERR) and os.environ.get("TERM") != "dumb"

    @property
    def can_draw(self) -> bool:
        """Whether a live line may be drawn now: never from the background of a shell."""
        return self._may_draw and _is_in_foreground()

    @property
    def columns(self) -> int:
        """The width of the terminal, less one: a full line would wrap."""
        with contextlib.suppress(OSError):
            return max(1, os.get_terminal_size(_ERR).columns - 1)
        return 79

    @property
    def dropped(self) -> int:
        """The number of lines that were not written."""
        return sum(sink.dropped for sink in self._sinks)

    def say(self, lines: bytes) -> None:
        """Write lines about the job, which end with a newline."""
        self._err.put(lines)

    def print(self, line: str) -> None:
        """Write a line of the training itself."""
        self._out.put(f"{line}\n".encode(errors="replace"))

    def draw(self, live_line: str) -> None:
        """Show ``live_line`` below all lines; an empty one removes it."""
        self._err.draw(live_line.encode(errors="replace"))

    def close(self) -> None:
        """Write what is left, but not for long; the live line must be gone."""
        for sink in self._sinks:
            sink.close(_LAST_LINES_WITHIN_S)

    @property
    def _sinks(self) -> tuple[LineSink, ...]:
        return (self._err,) if self._out is self._err else (self._out, self._err)


def say(text: str) -> None:
    """Write one line beside a job; a stderr that takes nothing keeps no job from ending."""
    sink = LineSink(_ERR)
    sink.put(f"holdfast: {' '.join(text.split())}\n".encode(errors="replace"))
    sink.close(_LAST_LINES_WITHIN_S)


def _are_the_same() -> bool:
    try:
        out, err = os.fstat(_OUT), os.fstat(_ERR)
    except OSError:
        return False
    return (out.st_dev, out.st_ino) == (err.st_dev, err.st_ino)


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(_ERR) == os.getpgrp()
    except OSError:  # it is not the terminal that controls this process, and so not its user's
        return False
