"""The output of workers, forwarded line by line, without the noise of libraries.

Every worker runs the same script, so each line would come once for each of them.  Only the
*speaker's* lines are shown, those of the first worker.  When it dies, the next first worker
speaks.  A user who wants to see all lines gets each with a prefix that names its worker.  The
lines of all workers go to the log files as well, those that are not shown,
too: the agent takes them twice a second.  Each worker has a room of its own for them, so a flood of
one loses lines of nobody else.

One thread reads all pipes, and hands whole lines to the sinks of our own stdout and stderr.
A terminal that takes nothing never slows down a worker that prints: its pipe is always read,
and what the sinks cannot hold is dropped and counted.

The newest lines of each pipe are kept.  All that a process has written before its end is in its
pipe by then, so ``last_lines`` reads the pipe itself, and waits for nobody.

*Streams* are stdout and stderr of the client that shows the job, which another client may exchange.
If both are the same terminal or file, one sink keeps the order of their lines.

*Noise* are remarks that mean nothing to a user whose job goes on.  After a death Open MPI and PMIx
print lines about broken pipes and aborted schedules.  Their banners announce the end of a job
that does not end.  Only lines known from real runs are noise; any other line is shown.  The runs
had Open MPI 5.0.9, and ranks killed in collectives and in point to point, over shared memory
and TCP.
"""

from __future__ import annotations

import os
import re
import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from holdfast.recovery.world import WorkerId
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.system.line_sink import LineSink
from holdfast.runtime.system.witnessed_time import Bound, has_ended

_ROOM_BYTES = 2 << 20
"""For each worker: a burst of 20,000 lines loses none."""
_TAKEN_BYTES = 1 << 20
"""From all of them at once: the way to the head has other things to carry."""
_LONGEST_LINE = 16 << 10
_PIECE_BYTES = 2 * _LONGEST_LINE
"""Short, so that a sign of life of a host waits for little."""

_LINE = re.compile(
    rb"^NBC_Progress: an error \d+ was found during schedule"
    rb"|^Error in NBC_Start_round\(\) \(-?\d+\)$"
    rb"|^\[warn\] Epoll (?:ADD|MOD|DEL)\(\d+\) on fd \d+ failed"
    rb"|^\[[^\]]+:\d+\] pmix_ptl_base: send_msg: write failed"
    # TensorFlow, when a process imports it
    rb"|^WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|^I0000 \d\d:\d\d:[\d.]+ +\d+ (?:port|cpu_feature_guard)\.cc:\d+\] "
    rb"|^To enable the following instructions: [A-Z0-9_ ]+, in other operations, rebuild"
)
_MARKS = (
    *(b"NBC_", b"[warn] Epoll ", b"pmix_ptl_base", b"absl::InitializeLog", b"I0000 "),
    *(b"To enable the following", b"-" * 74),
)
"""Text without any of these has no noise; this test is much faster than the patterns."""
_BANNER_EDGE = re.compile(rb"^-{74}$")
_BANNER_BEGIN = re.compile(rb"^MPI_ABORT was invoked on rank")
_FOLDED_BEGIN = re.compile(
    rb"^(?:WARNING: |ERROR: )?(?:.*\b(?:PMIx|PMIX|PRTE|PRRTE|prterun|Open MPI|MPI_INIT)\b"
    rb"|A (?:requested component|system call|system-required executable|call to) "
    rb"|No network interfaces |It looks like (?:MPI|PMIx)|Sorry!  You were supposed to get help)"
)
"""How banners of Open MPI's libraries begin that may tell something: they are shown in one line."""
_BLANK = re.compile(rb"^[\s\0]*$")
_LONGEST_BANNER_LINES = 40

OUT, ERR = 1, 2

_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20
_PIPE_HOLDS_CHUNKS = 2
"""A pipe holds 64 KiB; one that is written meanwhile is not read for ever."""

MOST_LINES = 40
_LONGEST_KEPT = 300


class LastLines:
    """Keeps the newest lines, each cut to its end: a progress bar writes one line for ever."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=MOST_LINES)

    def take(self, lines: bytes) -> None:
        """Keep the newest of whole ``lines``."""
        # Most output is short, but a chunk may hold thousands of lines.
        for line in lines.rsplit(b"\n", MOST_LINES + 1)[-MOST_LINES - 1 :]:
            if line.strip():
                self._lines.append(line.rstrip()[-_LONGEST_KEPT:])

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines, the newest last."""
        return tuple(line.decode(errors="replace") for line in self._lines)


@dataclass(slots=True)
class Forwarded:
    """A pipe whose output is being forwarded, and the line that it has not ended yet."""

    forwarder: OutputForwarder
    fd: int
    prefix: bytes
    worker: int | None
    sink_fd: int
    noise: NoiseFilter | None
    partial: bytearray = field(default_factory=bytearray)
    last: LastLines = field(default_factory=LastLines)
    is_finished: bool = False

    def last_lines(self) -> tuple[str, ...]:
        """Return the newest lines, of all that the pipe holds by now; never waits."""
        self.forwarder.read(self)
        return self.last.lines

    def lines_in(self, data: bytes) -> bytes:
        """Return the lines that ``data`` completes, without noise."""
        end = data.rfind(b"\n") + 1
        complete = bytes(self.partial) + data[:end] if end else b""
        if end:
            self.partial.clear()
        self.partial += data[end:]
        if len(self.partial) > _LONGEST_LINE_BYTES:
            complete += self.rest()
        return self._sifted(complete)

    def last_line(self) -> bytes:
        """Return the unfinished line; call it when the pipe has ended."""
        lines = self._sifted(self.rest())
        if self.noise is None:
            return lines
        held = self.noise.rest()
        self.last.take(held)
        return lines + held

    def rest(self) -> bytes:
        """Take the unfinished line, with an end given to it."""
        rest = bytes(self.partial) + b"\n" if self.partial else b""
        self.partial.clear()
        return rest

    def _sifted(self, complete: bytes) -> bytes:
        if self.noise is not None:
            complete = self.noise.without_noise(complete)
        self.last.take(complete)
        return complete

    def prefixed(self, complete: bytes) -> bytes:
        """Return whole lines, each behind the prefix."""
        if not complete or not self.prefix:
            return complete
        return self.prefix + complete[:-1].replace(b"\n", b"\n" + self.prefix) + b"\n"


class OutputForwarder:
    """The thread that forwards output; hides Open MPI's own noise unless ``verbose``."""

    def __init__(self, put: Callable[[int, bytes], None], *, verbose: bool) -> None:
        """Take what puts whole lines to stdout (1) or stderr (2), and never waits."""
        self.put = put
        self._verbose = verbose
        self.speaker: int | None = None
        """The worker whose lines are shown; unless verbose, those of others are not."""
        self.logged = LogLines()
        """The lines of all workers, for their log files."""
        self._selector = selectors.DefaultSelector()
        self._new: deque[Forwarded] = deque()
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._bound: Bound | None = None
        """That of what is left to be read, once it is known that nothing will follow."""
        self._lock = threading.Lock()
        """Held while a pipe is read: by the thread, or for its last lines."""
        self._thread = threading.Thread(target=self._run, name="holdfast-output", daemon=True)
        self._thread.start()

    def forward(self, fd: int, prefix: str, sink_fd: int, worker: int | None = None) -> Forwarded:
        """Forward the output in ``fd``, which is owned from now on, to ``sink_fd``.

        That of a ``worker`` is shown while it speaks, and has no prefix then.
        """
        os.set_blocking(fd, False)
        noise = None if self._verbose else NoiseFilter()
        is_bare = worker is not None and not self._verbose
        prefixed = b"" if is_bare else prefix.encode()
        stream = Forwarded(self, fd, prefixed, worker, sink_fd, noise)
        self._new.append(stream)
        os.write(self._wake_write, b"w")
        return stream

    def close(self, timeout_s: float) -> None:
        """Wait until all pipes have ended, at most ``timeout_s``; then stop forwarding."""
        # The thread may end before it is woken: the pipe stays open until it has ended.
        self._bound = Bound(timeout_s)
        os.write(self._wake_write, b"w")
        if has_ended(self._thread, Bound(timeout_s + 1.0)):
            os.close(self._wake_read)
            os.close(self._wake_write)

    def _run(self) -> None:
        while not self._is_over():
            bound = self._bound
            ready = self._selector.select() if bound is None else bound.wait(self._selector.select)
            for key, _ in ready:
                if key.data is None:
                    self._take_new()
                else:
                    self._read_ready(key.data)
        self._end()

    def _is_over(self) -> bool:
        if self._bound is None or self._new:
            return False
        return len(self._selector.get_map()) == 1 or self._bound.has_passed

    def _take_new(self) -> None:
        os.read(self._wake_read, 4096)
        while self._new:
            stream = self._new.popleft()
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)

    def _read_ready(self, stream: Forwarded) -> None:
        with self._lock:
            if not self._has_read(stream) and not stream.is_finished:
                self._selector.unregister(stream.fd)
                self._finish(stream)

    def read(self, stream: Forwarded) -> None:
        """Forward the whole lines that a pipe holds by now; never waits.

        Its end is left to the thread.
        """
        with self._lock:
            for _ in range(_PIPE_HOLDS_CHUNKS):
                if stream.is_finished or not self._has_read(stream):
                    return

    def read_end(self, stream: Forwarded) -> None:
        """Forward all that the pipe of a dead process holds, its unfinished line too."""
        self.read(stream)
        with self._lock:
            if not stream.is_finished:
                self._put(stream, stream.last_line())

    def _has_read(self, stream: Forwarded) -> bool:
        """Read once; return whether the pipe is still open, as far as one can see."""
        try:
            data = os.read(stream.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._put(stream, stream.lines_in(data))
        return bool(data)

    def _put(self, stream: Forwarded, lines: bytes) -> None:
        if stream.worker is not None and stream.worker >= 0:
            self.logged.put(stream.worker, lines)
        if self._verbose or stream.worker in (None, self.speaker):
            self.put(stream.sink_fd, stream.prefixed(lines))

    def _finish(self, stream: Forwarded) -> None:
        stream.is_finished = True
        os.close(stream.fd)
        self._put(stream, stream.last_line())

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                with self._lock:
                    self._finish(key.data)
        self._selector.close()


class NoiseFilter:
    """Removes noise from one stream of complete lines.

    A banner stands between two rules of dashes, so a rule is kept back until
    the next line shows what it begins.  A blank line after noise belongs to it.
    A banner that is no noise becomes one line, so it is kept back until its end.
    """

    def __init__(self) -> None:
        self._rule = b""
        self._folded: list[bytes] = []
        self._after_noise = False

    def without_noise(self, lines: bytes) -> bytes:
        """Return ``lines``, each with its end, without those that are noise."""
        is_plain = not (self._rule or self._folded or self._after_noise)
        if is_plain and not any(mark in lines for mark in _MARKS):
            return lines
        return b"".join(self._sift(line) for line in lines.splitlines(keepends=True))

    def rest(self) -> bytes:
        """Return what was kept back; call it when the stream has ended."""
        rest = self._rule + b"".join(() if self._is_noise else self._folded)
        self._rule, self._folded = b"", []
        return rest

    @property
    def _is_noise(self) -> bool:
        """Whether the banner that is kept back tells nothing."""
        return bool(self._folded and _BANNER_BEGIN.match(self._folded[1]))

    def _sift(self, line: bytes) -> bytes:
        if self._folded:
            return self._fold(line)
        if self._rule and (_BANNER_BEGIN.match(line) or _FOLDED_BEGIN.match(line)):
            self._folded, self._rule = [self._rule, line], b""
            return b""
        return self.rest() + self._sift_plain(line)

    def _fold(self, line: bytes) -> bytes:
        self._folded.append(line)
        if not _BANNER_EDGE.match(line):
            return self.rest() if len(self._folded) > _LONGEST_BANNER_LINES else b""
        words = b"" if self._is_noise else b" ".join(b"".join(self._folded[1:-1]).split()) + b"\n"
        self._folded = []
        self._after_noise = True
        return words

    def _sift_plain(self, line: bytes) -> bytes:
        if _LINE.match(line):
            self._after_noise = True
            return b""
        if self._after_noise and _BLANK.match(line):
            return b""
        self._after_noise = False
        if _BANNER_EDGE.match(line):
            self._rule = line
            return b""
        return line


def without_rules(words: str) -> str:
    """Return what a launcher has said, without the rules around its banners and empty lines."""
    return "\n".join(line for line in words.splitlines() if set(line.strip()) - {"-"})


class Streams:
    """Owns a sink for each of both streams, or one for both."""

    def __init__(self) -> None:
        self._left: list[LineSink] = []
        self._sinks = _open()

    def __getitem__(self, fd: int) -> LineSink:
        """Return the sink of ``OUT`` or ``ERR``."""
        return self._sinks[fd]

    def put(self, fd: int, lines: bytes) -> None:
        """Show whole lines."""
        self[fd].put(lines)

    @property
    def dropped(self) -> int:
        """The number of lines that were not written."""
        return sum(sink.dropped for sink in {*self._sinks.values(), *self._left})

    def redirect(self) -> None:
        """Write to what our stdout and stderr are by now, even if a write to the old ones hangs."""
        before = set(self._sinks.values())
        try:
            self._sinks = _open()
        except OSError:  # no thread to spare: the old ones write to the same numbers
            return
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

    def take(self, worker: int | None = None) -> list[LogText]:
        """Return what waits, of one worker or an equal part of each; nothing while it is held."""
        if self.is_held():
            return []
        with self._lock:
            workers = [each for each in self._rooms if worker in (None, each)]
            share = self._taken_bytes // max(1, len(workers))
            return [piece for each in workers for piece in self._taken(each, share)]

    def _taken(self, worker: int, share: int) -> Iterator[LogText]:
        room, taken = self._rooms[worker], 0
        while room.lines and taken <= share:
            end = room.lines.rfind(b"\n", 0, _PIECE_BYTES) + 1
            lines = room.lines[:end].decode("latin-1")
            del room.lines[:end]
            taken += end
            yield LogText(WorkerId(worker), "", lines, 0 if room.lines else room.lost)
        if not room.lines:
            del self._rooms[worker]


def _in_parts(line: bytes) -> bytes:
    """Return a line, or a long one as several."""
    starts = range(0, max(1, len(line)), _LONGEST_LINE)
    return b"\n".join(line[start : start + _LONGEST_LINE] for start in starts)
