"""Lines of workers that wait for their way to the log files.

The thread that reads the pipes puts them here, and the agent takes them twice a second.
So a worker that floods its pipe costs the others nothing: each has a room of its own here, and
what does not fit is lost, and counted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

_ROOM_BYTES = 2 << 20
"""For each worker: a burst of 20,000 lines loses none."""
_TAKEN_BYTES = 1 << 20
"""From all of them at once: the way to the head has other things to carry."""
_LONGEST_LINE = 16 << 10
_PIECE_BYTES = 2 * _LONGEST_LINE
"""Short, so that a sign of life of a host waits for little."""


@dataclass(frozen=True, slots=True)
class LogPiece:
    """Whole lines of a worker; after them so many are ``lost``."""

    worker: int
    lines: bytes
    lost: int = 0


@dataclass(slots=True)
class _Room:
    lines: bytearray = field(default_factory=bytearray)
    lost: int = 0
    """Those that came after ``lines``, and did not fit."""


class LogLines:
    """A room for the lines of each worker; both methods may be called by any thread."""

    def __init__(self, room_bytes: int = _ROOM_BYTES, taken_bytes: int = _TAKEN_BYTES) -> None:
        self._room_bytes = room_bytes
        self._taken_bytes = taken_bytes
        self._lock = threading.Lock()
        self._rooms: dict[int, _Room] = {}
        self.is_held: Callable[[], bool] = lambda: False
        """Whether the way to the head is full."""

    def put(self, worker: int, lines: bytes) -> None:
        """Keep whole lines; a long one becomes several."""
        if not lines:
            return
        if len(lines) > _LONGEST_LINE:
            lines = b"\n".join(map(_in_parts, lines.split(b"\n")))
        with self._lock:
            room = self._rooms.setdefault(worker, _Room())
            free = 0 if room.lost else self._room_bytes - len(room.lines)
            end = len(lines) if len(lines) <= free else lines.rfind(b"\n", 0, max(0, free)) + 1
            room.lines += lines[:end]
            room.lost += lines.count(b"\n", end)

    def take(self, worker: int | None = None) -> list[LogPiece]:
        """Return what waits, of one worker or an equal part of each; nothing while it is held."""
        if self.is_held():
            return []
        with self._lock:
            workers = [each for each in self._rooms if worker in (None, each)]
            share = self._taken_bytes // max(1, len(workers))
            return [piece for each in workers for piece in self._taken(each, share)]

    def _taken(self, worker: int, share: int) -> Iterator[LogPiece]:
        room, taken = self._rooms[worker], 0
        while room.lines and taken <= share:
            end = room.lines.rfind(b"\n", 0, _PIECE_BYTES) + 1
            lines = bytes(room.lines[:end])
            del room.lines[:end]
            taken += end
            yield LogPiece(worker, lines, 0 if room.lines else room.lost)
        if not room.lines:
            del self._rooms[worker]


def _in_parts(line: bytes) -> bytes:
    """Return a line, or a long one as several."""
    starts = range(0, max(1, len(line)), _LONGEST_LINE)
    return b"\n".join(line[start : start + _LONGEST_LINE] for start in starts)
