"""A job's stdout and stderr: lines that nobody waits for, and a live line on a terminal.

Progress goes to stdout, where Keras prints it, and all else to stderr.  The live line is
drawn on stderr.  If both are the same terminal or file, one sink keeps their order.  Before
a job has a screen, and after it, `say` writes single lines.

The progress is what the agent tells of it.  What the training calls ``verbose`` decides: 0
shows nothing, 2 only a line for each epoch.  An epoch that is trained again after a relaunch is
not told again.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.runtime.run.live_line import Part, Picture, live_line
from holdfast.runtime.run.progress import LIVE, SILENT, EndedEpoch
from holdfast.runtime.system.channel import Message
from holdfast.runtime.system.line_sink import LineSink

_OUT, _ERR = 1, 2
_LAST_LINES_WITHIN_S = 2.0
"""A terminal that takes nothing may not keep a job from ending."""

Paint = Callable[[Sequence[Part]], str]
"""Gives parts their colours, for a terminal."""


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


class ProgressLog:
    """Draws and prints on ``screen``; without ``paint`` there is no live line."""

    def __init__(
        self,
        screen: Screen,
        paint: Paint | None = None,
        *,
        is_quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = screen
        self._paint = paint
        self._is_quiet = is_quiet
        self._clock = clock
        self._picture = Picture()
        self._shown_step = -1
        self._is_drawn = False
        self._is_over = False

    @property
    def draws(self) -> bool:
        """Whether a live line stands on the terminal, or may soon; others erase it first."""
        return self._is_drawn or self._is_wanted()

    @property
    def is_after_training(self) -> bool:
        """Whether all trainings so far are complete, and only the script goes on."""
        return self._picture.is_after_training

    def launching(self, workers: int) -> None:
        """Take note of another launch."""
        self._picture = self._picture.launched(workers)

    def heard(self, message: Message) -> None:
        """Take note of a message of the agent, and show what is new."""
        kind = message.get("kind")
        if kind == "pong":
            self._picture = self._picture.seen(message)
            self._draw()
        elif kind == "worker_report":
            self._heard_report(message["report"], float(message.get("now", 0.0)))

    def end(self) -> None:
        """Remove the live line, for good."""
        self._is_over = True
        self._erase()

    def _heard_report(self, report: dict[str, Any], now: float) -> None:
        if report.get("kind") == "checkpoint":
            self._picture = self._picture.saved(report["step"], now)
        elif report.get("kind") == "epoch":
            epoch = EndedEpoch.of(report)
            if epoch is not None:
                self._print(epoch)

    def _print(self, epoch: EndedEpoch) -> None:
        if epoch.step <= self._shown_step:
            return
        self._shown_step = epoch.step
        if not self._is_quiet and epoch.verbose != SILENT:
            self._screen.print(epoch.line)

    def _draw(self) -> None:
        if not self._is_wanted():
            self._erase()
            return
        assert self._paint is not None
        self._is_drawn = True
        parts = live_line(self._picture, self._clock(), self._screen.columns)
        self._screen.draw(self._paint(parts))

    def _is_wanted(self) -> bool:
        if self._paint is None or self._is_quiet or self._is_over or not self._screen.can_draw:
            return False
        report = self._picture.report
        return report is None or report.verbose == LIVE

    def _erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._screen.draw("")
