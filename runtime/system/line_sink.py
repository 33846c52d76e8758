"""Whole lines on their way to a terminal, pipe or file that may take none.

A terminal can be held (Ctrl-S), a pager stuck, a disk full, a pipe closed.  None of that may
delay the process that has something to say.  So ``put`` only queues, and a thread of its own
writes.  The queue is bounded: what does not fit is dropped, and counted.

Lines are written in pieces of at most ``PIPE_BUF`` bytes that end at a line's end.  The
kernel does not mix such writes with those of other processes (pipe(7)), so no line is torn.

A terminal may have a *live line* below its lines: one that is drawn again and again.  It has no
end, so the writer of the next line erases it first.  Of live lines only the newest is kept, so
a terminal that is held collects none.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque

from holdfast.runtime.system.signals import start_thread
from holdfast.runtime.system.witnessed_time import Bound, has_ended

_QUEUE_BYTES = 32 << 20
"""Some hundred thousand lines: a terminal that is held for minutes loses nothing."""

ERASE = b"\r\x1b[2K"
"""Back to the first column, and the line is empty (ECMA-48: CR, EL 2)."""

_GAP = "holdfast: output: "


class LineSink:
    """A descriptor to write lines to, without ever waiting for it."""

    def __init__(self, fd: int, queue_bytes: int = _QUEUE_BYTES) -> None:
        """Start the thread that writes; raises ``OSError`` if there is none to spare."""
        self.fd = fd
        self._queue_bytes = queue_bytes
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped = 0
        self._untold = 0
        self._changed = threading.Condition()
        self._is_closing = False
        self._live_line = b""
        self._is_stale = False
        self._erases = False
        """Whether a live line may stand where the next line belongs."""
        self._thread = threading.Thread(target=self._run, name="holdfast-sink", daemon=True)
        start_thread(self._thread)

    @property
    def dropped(self) -> int:
        """The number of lines that were not written."""
        return self._dropped

    def put(self, lines: bytes) -> None:
        """Queue ``lines``, which end with a newline; drop them if the queue is full."""
        if not lines:
            return
        with self._changed:
            if self._queued_bytes + len(lines) > self._queue_bytes:
                self._drop(lines)
                return
            self._note_gap()
            self._add(lines)

    def draw(self, live_line: bytes) -> None:
        """Let ``live_line``, which has no end, stand below all lines; an empty one removes it."""
        with self._changed:
            self._erases = True
            self._live_line = live_line
            self._is_stale = True
            self._changed.notify()

    def close(self, timeout_s: float) -> None:
        """Wait until all lines are written, at most ``timeout_s``; the rest is dropped."""
        with self._changed:
            self._note_gap()
            self._is_closing = True
            self._changed.notify()
        has_ended(self._thread, Bound(timeout_s))
        with self._changed:
            while self._queue:
                self._drop(self._queue.popleft())

    def _run(self) -> None:
        while True:
            with self._changed:
                while not (self._queue or self._is_stale or self._is_closing):
                    self._changed.wait()
                if not (self._queue or self._is_stale):
                    return
                lines = self._queue.popleft() if self._queue else b""
                live_line = self._live_line
                self._is_stale = bool(lines and (live_line or self._is_stale))
            if lines:
                self._write(lines)
            else:
                self._write_live(live_line)
            with self._changed:
                self._queued_bytes -= len(lines)

    def _write(self, lines: bytes) -> None:
        start = 0
        try:
            while start < len(lines):
                start += self._write_some(lines, start)
        except OSError:  # closed, full, or a terminal that is gone
            with self._changed:
                self._drop(lines[start:])

    def _write_some(self, lines: bytes, start: int) -> int:
        end = lines.rfind(b"\n", start, start + select.PIPE_BUF) + 1
        if end == 0:
            end = lines.index(b"\n", start) + 1
        before = ERASE if self._erases else b""
        try:
            return max(0, os.write(self.fd, before + lines[start:end]) - len(before))
        except BlockingIOError:  # another program of the terminal has made it so
            select.select([], [self.fd], [])
            return 0

    def _write_live(self, live_line: bytes) -> None:
        with contextlib.suppress(OSError):  # the next one comes soon, if it is still wanted
            os.write(self.fd, ERASE + live_line)

    def _add(self, lines: bytes) -> None:
        self._queue.append(lines)
        self._queued_bytes += len(lines)
        self._changed.notify()

    def _note_gap(self) -> None:
        """Tell the reader at this place that lines are missing."""
        untold, self._untold = self._untold, 0
        if untold:
            noun = "line was" if untold == 1 else "lines were"
            self._add(f"{_GAP}{untold} {noun} dropped here, because none was taken\n".encode())

    def _drop(self, lines: bytes) -> None:
        count = 0 if lines.startswith(_GAP.encode()) else lines.count(b"\n")
        self._dropped += count
        self._untold += count
