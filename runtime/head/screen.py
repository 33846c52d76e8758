"""A job's stdout and stderr: lines that nobody waits for, and a live line on a terminal.

Progress goes to stdout, where Keras prints it, and all else to stderr.  The live line is
drawn on stderr, as long as the client says that its terminal shows it.  A client itself writes
single lines (`say`).

The progress is what the agent tells of it.  What the training calls ``verbose`` decides: 0
shows nothing, 2 only a line for each epoch.  An epoch that is trained again after a relaunch is
not told again.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from holdfast.recovery.event import Event
from holdfast.runtime.host.output import ERR, OUT, Streams
from holdfast.runtime.run.events import Epoch, PoolWarmed
from holdfast.runtime.run.live_line import GAP, Part, Picture, live_line
from holdfast.runtime.run.progress import LIVE, SILENT, LaunchReport
from holdfast.runtime.system.line_sink import LineSink

_COLUMNS = 79
"""For a live line on a terminal that does not tell its width."""

_LAST_LINES_WITHIN_S = 2.0
"""A terminal that takes nothing may not keep a job from ending."""

_CODES = {"plain": "", "epoch": "1", "metric": "36", "phase": "33", "loss": "1;31", "quiet": "2"}
"""Of each style, as every terminal with colours knows them (ECMA-48, SGR)."""
_FULL_CODE, _EMPTY_CODE = "32", "90"
_WITHOUT_CODES = ("dumb", "unknown")
"""What TERM says of a terminal that knows none."""


def paint(parts: Sequence[Part], *, is_plain: bool = False) -> str:
    """Return the parts as text, with the codes for their colours if the terminal knows them.

    Without colours, as a user may want them, a bar is full where its cells are heavy.
    """
    is_plain |= bool(os.environ.get("NO_COLOR"))
    has_codes = not is_plain and os.environ.get("TERM", "").strip().lower() not in _WITHOUT_CODES
    filled, empty = _cells("┄" if is_plain else "━")

    def coded(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if text and code and has_codes else text

    def painted(part: Part) -> str:
        if part.done is None:
            return coded(part.text, _CODES[part.style])
        full = round(part.done * len(part.text))
        left = len(part.text) - full
        return coded(filled * full, _FULL_CODE) + coded(empty * left, _EMPTY_CODE)

    return GAP.join(map(painted, parts))


def _cells(empty: str) -> tuple[str, str]:
    """Return a full and an empty cell of a bar, in letters that the terminal's encoding has."""
    try:
        f"━{empty}".encode(sys.__stderr__.encoding if sys.__stderr__ else "ascii")
    except UnicodeEncodeError:
        return "=", "."
    return "━", empty


class Screen:
    """Shows lines on the streams of the client, and a live line on its terminal."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self.columns = 0
        """The width for a live line; 0 while none may be drawn."""
        self.is_plain = False
        """Whether its user wants no colours (NO_COLOR)."""
        self.copy: Callable[[bytes], None] = lambda lines: None
        """Takes the lines for the log of the run as well."""

    def say(self, lines: bytes) -> None:
        """Write lines about the job, which end with a newline."""
        self._streams[ERR].put(lines)
        self.copy(lines)

    def print(self, line: str) -> None:
        """Write a line of the training itself."""
        lines = f"{line}\n".encode(errors="replace")
        self._streams[OUT].put(lines)
        self.copy(lines)

    def draw(self, live_line: str) -> None:
        """Show ``live_line`` below all lines; an empty one removes it."""
        self._streams[ERR].draw(live_line.encode(errors="replace"))


def say(text: str) -> None:
    """Write one line beside a job; a stderr that takes nothing keeps no job from ending."""
    sink = LineSink(ERR)
    sink.put(f"holdfast: {' '.join(text.split())}\n".encode(errors="replace"))
    sink.close(_LAST_LINES_WITHIN_S)


def live_columns() -> int:
    """Return the width for a live line on this process's terminal; 0 if it may have none.

    It has none in the background of a shell.  It is a column less than the terminal: a full
    line would wrap.
    """
    if not os.isatty(ERR) or os.environ.get("TERM") == "dumb" or not _is_in_foreground():
        return 0
    with contextlib.suppress(OSError):
        columns = os.get_terminal_size(ERR).columns
        return columns - 1 if columns > 1 else _COLUMNS
    return _COLUMNS


def _is_in_foreground() -> bool:
    try:
        return os.tcgetpgrp(ERR) == os.getpgrp()
    except OSError:  # it is not the terminal that controls this process, and so not its user's
        return False


class ProgressLog:
    """Draws and prints on ``screen``."""

    def __init__(
        self,
        screen: Screen,
        *,
        paint: Callable[..., str] = paint,
        is_quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        imports: str = "",
    ) -> None:
        self._screen = screen
        self._paint = paint
        self._is_quiet = is_quiet
        self._clock = clock
        self._picture = Picture(imports=imports)
        self._shown_step = -1
        self._is_drawn = False
        self._is_over = False

    @property
    def is_after_training(self) -> bool:
        """Whether all trainings so far are complete, and only the script goes on."""
        return self._picture.is_after_training

    def launching(self, workers: int) -> None:
        """Take note of another launch."""
        self._picture = self._picture.launched(workers)

    def show_event(self, event: Event) -> None:
        """Take note of an event, and show what is new."""
        match event:
            case PoolWarmed():
                self._picture = replace(self._picture, imports="")
            case Epoch():
                self._print(event)

    def stopping(self) -> None:
        """Show from here on that the job was asked to stop."""
        self._picture = replace(self._picture, is_stopping=True)

    def show(self, progress: LaunchReport) -> None:
        """Draw how far training has come."""
        self._picture = self._picture.seen(progress)
        self._draw()

    def end(self) -> None:
        """Remove the live line, for good."""
        self._is_over = True
        self._erase()

    def _print(self, epoch: Epoch) -> None:
        if epoch.step <= self._shown_step:
            return
        self._shown_step = epoch.step
        self._picture = self._picture.printed(epoch)
        if not self._is_quiet and epoch.verbose != SILENT:
            self._screen.print(epoch.line)
        if self._is_drawn:
            self._draw()

    def _draw(self) -> None:
        if not self._is_wanted():
            self._erase()
            return
        self._is_drawn = True
        parts = live_line(self._picture, self._clock(), self._screen.columns)
        self._screen.draw(self._paint(parts, is_plain=self._screen.is_plain))

    def _is_wanted(self) -> bool:
        if self._is_quiet or self._is_over or self._screen.columns <= 0:
            return False
        report = self._picture.report
        return report is None or report.verbose == LIVE

    def _erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._screen.draw("")
