"""A bar for work that reads many bytes, shown to people who have waited for a second."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

PATIENCE_S = 1.0


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
        is_late = self._clock() - self._began > PATIENCE_S
        if is_late and self._console.is_terminal and not self._is_shown:
            self._is_shown = True
            self._bar.start()

    def __enter__(self) -> ByteProgress:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._is_shown:
            self._bar.stop()
