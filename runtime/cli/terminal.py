"""What is drawn with rich: the console of results, a bar for many bytes, the live line's colours.

A terminal has a width, and a file or a pipe has none: what a program reads is never cut.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

from holdfast.runtime.run import progress
from holdfast.runtime.run.live_line import GAP, Part

_WIDE = 1000
"""Columns of a file or a pipe: nobody pages there, and what is cut or folded cannot be searched."""

_PATIENCE_S = 1.0
"""People who have waited for so long are shown a bar."""

_STYLES = {
    "plain": "",
    "epoch": "bold",
    "metric": "cyan",
    "phase": "yellow",
    "loss": "bold red",
    "quiet": "dim",
}
_FULL_STYLE, _EMPTY_STYLE = "green", "bright_black"


def output() -> Console:
    """Return a console on stdout, as wide as the terminal; a file is wide."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(soft_wrap=True, highlight=False, width=None if is_known else _WIDE)


def grid() -> Table:
    """Return an empty table of names and texts; a long text may be broken, but is never cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    return table


class ByteProgress:
    """Call it with each number of bytes that is done; a terminal on stderr shows a bar."""

    def __init__(
        self,
        title: str,
        total: int,
        *,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._began = clock()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            console=self._console,
            transient=True,
        )
        self._task = self._bar.add_task(title, total=total or None)
        self._is_shown = False

    def __call__(self, count: int) -> None:
        """Note that ``count`` more bytes are done."""
        self._bar.advance(self._task, count)
        is_late = self._clock() - self._began > _PATIENCE_S
        if is_late and self._console.is_terminal and not self._is_shown:
            self._is_shown = True
            self._bar.start()

    def __enter__(self) -> ByteProgress:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._is_shown:
            self._bar.stop()


def paint(parts: Sequence[Part]) -> str:
    """Return the parts as text with the escape codes that this terminal knows.

    rich knows the terminal by TERM, COLORTERM and NO_COLOR.  It only makes text here: nothing is
    written, so a terminal that takes nothing keeps nobody waiting.
    """
    columns = sum(progress.columns(part.text) + len(GAP) for part in parts) + 1
    console = Console(file=io.StringIO(), force_terminal=True, width=columns, highlight=False)
    with console.capture() as written:
        console.print(Text(GAP).join(map(_text_of, parts)), end="", no_wrap=True)
    return written.get()


def _text_of(part: Part) -> Text:
    if part.done is None:
        return Text(part.text, style=_STYLES[part.style])
    full = round(part.done * len(part.text))
    filled, empty = _cells()
    bar = Text(filled * full, style=_FULL_STYLE)
    return bar.append(empty * (len(part.text) - full), style=_EMPTY_STYLE)


def _cells() -> tuple[str, str]:
    """Return a full and an empty cell of a bar, in letters that the terminal's encoding has."""
    try:
        "━".encode(sys.__stderr__.encoding if sys.__stderr__ else "ascii")
    except UnicodeEncodeError:
        return "=", "."
    return "━", "━"
