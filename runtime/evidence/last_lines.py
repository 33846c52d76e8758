"""The newest lines of a worker's stderr: what it has said before it died."""

from __future__ import annotations

from collections import deque

MOST_LINES = 40
_LONGEST_LINE = 300


class LastLines:
    """Keeps the newest lines, each cut to its end: a progress bar writes one line for ever."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)

    def take(self, lines: bytes) -> None:
        """Keep the newest of whole ``lines``."""
        # Most output is short, but a chunk may hold thousands of lines.
        for line in lines.rsplit(b"\n", MOST_LINES + 1)[-MOST_LINES - 1 :]:
            if line.strip():
                self._lines.append(line.rstrip()[-_LONGEST_LINE:])

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, the newest last."""
        return tuple(line.decode(errors="replace") for line in self._lines)
