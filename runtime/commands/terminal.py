"""What is drawn with rich: the console of results, and a bar for many bytes.

A terminal has a width, and a file or a pipe has none: what a program reads is never cut.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table
from rich.text import Text

_WIDE = 1000
"""Columns of a file or a pipe: nobody pages there, and what is cut or folded cannot be searched."""

_DIGEST = re.compile(r"\b([0-9a-f]{16})[0-9a-f]{48}\b")

_PATIENCE_S = 1.0
"""People who have waited for so long are shown a bar."""


def output() -> Console:
    """Return a console on stdout, as wide as the terminal; a file is wide."""
    is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(soft_wrap=True, highlight=False, width=None if is_known else _WIDE)


def fitted(text: str, console: Console) -> str:
    """Return a text whose digests no line of a terminal breaks; a program reads them whole."""
    return text if console.width >= _WIDE else _DIGEST.sub(r"\1…", text)


def ruled(*heads: str, **settings: Any) -> Table:
    """Return a table with a line below its heads alone."""
    return Table(*heads, box=box.SIMPLE_HEAD, **settings)


def moment(since_1970_s: float) -> str:
    """Return a moment by the clock of this place."""
    return f"{datetime.fromtimestamp(since_1970_s).astimezone():%Y-%m-%d %H:%M:%S}"


def grid(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table of names and texts; a long text may be broken, but is never cut."""
    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, Text(text))  # no markup: a text is often the script's own words
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
