"""The output of workers, forwarded line by line.

Every worker runs the same script, so each line would come once for each of them.  Only the
*speaker's* lines are shown, those of the first worker.  When it dies, the next first worker
speaks.  A user who wants to see all lines gets each with a prefix that names its worker.

One thread reads all pipes, and hands whole lines to the sinks of our own stdout and stderr.
A terminal that takes nothing never slows down a worker that prints: its pipe is always read,
and what the sinks cannot hold is dropped and counted.

The newest lines of each pipe are kept.  All that a process has written before its end is in its
pipe by then, so ``last_lines`` reads the pipe itself, and waits for nobody.
"""

from __future__ import annotations

import os
import selectors
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.runtime.evidence.last_lines import LastLines
from holdfast.runtime.mpiexec.noise import NoiseFilter
from holdfast.runtime.system.line_sink import LineSink
from holdfast.runtime.system.witnessed_time import Bound, has_ended

_CHUNK_BYTES = 1 << 16
_LONGEST_LINE_BYTES = 1 << 20
_PIPE_HOLDS_CHUNKS = 2
"""A pipe holds 64 KiB; one that is written meanwhile is not read for ever."""
_SINKS_END_WITHIN_S = 2.0
"""A terminal that takes nothing may not keep a job from ending."""


@dataclass(slots=True)
class _Stream:
    """A pipe that a worker writes to, and the line that it has not ended yet."""

    fd: int
    prefix: bytes
    worker: int | None
    sink_fd: int
    noise: NoiseFilter | None
    partial: bytearray = field(default_factory=bytearray)
    last: LastLines = field(default_factory=LastLines)
    is_finished: bool = False

    def lines_in(self, data: bytes) -> bytes:
        """Return the lines that ``data`` completes, prefixed and without noise."""
        end = data.rfind(b"\n") + 1
        complete = bytes(self.partial) + data[:end] if end else b""
        if end:
            self.partial.clear()
        self.partial += data[end:]
        if len(self.partial) > _LONGEST_LINE_BYTES:
            complete += self.rest()
        return self._dressed(complete)

    def last_line(self) -> bytes:
        """Return the unfinished line, prefixed; call it when the pipe has ended."""
        lines = self._dressed(self.rest())
        if self.noise is None:
            return lines
        held = self.noise.rest()
        self.last.take(held)
        return lines + self._prefixed(held)

    def rest(self) -> bytes:
        """Take the unfinished line, with an end given to it."""
        rest = bytes(self.partial) + b"\n" if self.partial else b""
        self.partial.clear()
        return rest

    def _dressed(self, complete: bytes) -> bytes:
        if self.noise is not None:
            complete = self.noise.without_noise(complete)
        self.last.take(complete)
        return self._prefixed(complete)

    def _prefixed(self, complete: bytes) -> bytes:
        if not complete or not self.prefix:
            return complete
        return self.prefix + complete[:-1].replace(b"\n", b"\n" + self.prefix) + b"\n"


class Forwarded:
    """A pipe whose output is being forwarded."""

    def __init__(self, stream: _Stream, read: Callable[[_Stream], None]) -> None:
        self._stream = stream
        self._read = read

    def last_lines(self) -> tuple[str, ...]:
        """Return the newest lines, of all that the pipe holds by now; never waits."""
        self._read(self._stream)
        return self._stream.last.lines


class OutputForwarder:
    """The thread that forwards output; hides Open MPI's own noise unless ``verbose``."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self.speaker: int | None = None
        """The worker whose lines are shown; unless verbose, those of others are not."""
        self._selector = selectors.DefaultSelector()
        self._new: deque[_Stream] = deque()
        self._sinks: dict[int, LineSink] = {}
        self._left: list[LineSink] = []
        self._wake_read, self._wake_write = os.pipe()
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._bound: Bound | None = None
        """That of what is left to be read, once it is known that nothing will follow."""
        self._erases = False
        self._lock = threading.Lock()
        """Held while a pipe is read: by the thread, or for its last lines."""
        self._thread = threading.Thread(target=self._run, name="holdfast-output", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        """The number of lines that no sink has taken."""
        return sum(sink.dropped for sink in [*self._sinks.values(), *self._left])

    def erase_live_line(self, *, is_there: bool) -> None:
        """Take note whether the supervisor draws a live line, for sinks that are its terminal."""
        self._erases = is_there
        for sink in self._sinks.values():
            sink.erases = is_there and os.isatty(sink.fd)

    def redirect(self) -> None:
        """Write to what our stdout and stderr are by now, even if a write to the old ones hangs."""
        self._left += self._sinks.values()
        for sink in self._sinks.values():
            sink.close(0.0)
        self._sinks = {fd: LineSink(fd) for fd in self._sinks}
        self.erase_live_line(is_there=self._erases)

    def forward(self, fd: int, prefix: str, sink_fd: int, worker: int | None = None) -> Forwarded:
        """Forward the output in ``fd``, which is owned from now on, to ``sink_fd``.

        That of a ``worker`` is shown while it speaks, and has no prefix then.
        """
        os.set_blocking(fd, False)
        noise = None if self._verbose else NoiseFilter()
        if sink_fd not in self._sinks:
            self._sinks[sink_fd] = LineSink(sink_fd)
            self.erase_live_line(is_there=self._erases)
        is_bare = worker is not None and not self._verbose
        stream = _Stream(fd, b"" if is_bare else prefix.encode(), worker, sink_fd, noise)
        self._new.append(stream)
        os.write(self._wake_write, b"w")
        return Forwarded(stream, self._read_all)

    def close(self, timeout_s: float) -> None:
        """Wait until all pipes have ended, at most ``timeout_s``; then stop forwarding.

        The sinks have two seconds for what they hold.
        """
        # The thread may end before it is woken: the pipe stays open until it has ended.
        self._bound = Bound(timeout_s)
        os.write(self._wake_write, b"w")
        if has_ended(self._thread, Bound(timeout_s + 1.0)):
            os.close(self._wake_read)
            os.close(self._wake_write)
        bound = Bound(_SINKS_END_WITHIN_S)
        for sink in self._sinks.values():
            sink.close(bound.left_s())

    def _run(self) -> None:
        while not self._is_over():
            bound = self._bound
            ready = self._selector.select() if bound is None else bound.wait(self._selector.select)
            for key, _ in ready:
                if key.data is None:
                    self._take_new()
                else:
                    self._read(key.data)
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

    def _read(self, stream: _Stream) -> None:
        with self._lock:
            if not self._has_read(stream) and not stream.is_finished:
                self._selector.unregister(stream.fd)
                self._finish(stream)

    def _read_all(self, stream: _Stream) -> None:
        """Read what the pipe holds; its end is left to the thread."""
        with self._lock:
            for _ in range(_PIPE_HOLDS_CHUNKS):
                if stream.is_finished or not self._has_read(stream):
                    return

    def _has_read(self, stream: _Stream) -> bool:
        """Read once; return whether the pipe is still open, as far as one can see."""
        try:
            data = os.read(stream.fd, _CHUNK_BYTES)
        except BlockingIOError:
            return True
        if data:
            self._put(stream, stream.lines_in(data))
        return bool(data)

    def _put(self, stream: _Stream, lines: bytes) -> None:
        if self._verbose or stream.worker in (None, self.speaker):
            self._sinks[stream.sink_fd].put(lines)

    def _finish(self, stream: _Stream) -> None:
        stream.is_finished = True
        os.close(stream.fd)
        self._put(stream, stream.last_line())

    def _end(self) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is not None:
                with self._lock:
                    self._finish(key.data)
        self._selector.close()
