"""Messages between processes: JSON objects over Unix sockets, or over any pair of descriptors.

One message is one line: a JSON object followed by a newline.  A ``LineChannel`` needs no more
than a descriptor to read and one to write, such as the pipes of a remote shell.

The processes of a host have a ``Channel``, over a Unix stream socket.  There file descriptors
travel beside a message (``SCM_RIGHTS``): on the wire its field ``"@fds"`` holds
their number, and the receiver finds the descriptors themselves there.  Linux
hands descriptors over no later than the first byte that they were sent with,
so they are queued and given to messages in order.

Only this file and ``network`` know sockets.  (The guard may import no module of holdfast, so
it writes the same lines by itself.)  Nothing here decides: a lost peer is an empty answer,
and the caller decides what follows.

What is said are dataclasses, which travel with the names of their classes.  A link has one union of
dataclasses for each direction.  That union is its protocol, and ``MessageKinds`` reads it.
"""

from __future__ import annotations

import array
import contextlib
import errno
import json
import os
import select
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar, get_args

from holdfast.runtime.system.codec import WrongValue, from_plain, to_plain
from holdfast.runtime.system.witnessed_time import Bound

Message: TypeAlias = dict[str, Any]
"""A JSON object; its field ``kind`` names its kind."""

FDS = "@fds"
"""The field of a received message that holds the descriptors which came with it."""

_CHUNK_BYTES = 1 << 16
_MAX_FDS = 16
_MAX_LINE_BYTES = 64 << 20
_MAX_OUTBOX_BYTES = 128 << 20


class ChannelError(Exception):
    """The peer of a channel broke the protocol: the line is too long or is no JSON object."""


class LineChannel:
    """One end of a connection: whole messages in, whole messages out.

    It owns a descriptor to read and one to write, and both are set to never block.
    ``send`` and ``receive`` wait; ``post``, ``flush`` and ``drain`` never do
    and are meant for a selector.  After the peer's end was seen ``is_closed``
    is true and stays so; ``is_broken`` tells that the peer broke the protocol.
    """

    def __init__(self, reads: int, writes: int) -> None:
        for fd in (reads, writes):
            os.set_blocking(fd, False)
        self._reads = reads
        self._writes = writes
        self._inbox = bytearray()
        self._messages: deque[Message] = deque()
        self._outbox: deque[tuple[bytes, tuple[int, ...]]] = deque()
        self._outbox_bytes = 0
        self._is_deaf = False
        self._sending = threading.Lock()
        self.on_waiting: Callable[[], None] = lambda: None
        """Hears that something waits which no readable descriptor tells: see ``is_waiting``."""
        self.is_closed = False
        self.is_broken = False

    def fileno(self) -> int:
        """Return the descriptor that is read, for a selector; -1 once it is closed."""
        return self._reads

    @property
    def write_fd(self) -> int:
        """The descriptor that is written, which may be the one that is read."""
        return self._writes

    def send(self, message: Message) -> None:
        """Write one message, waiting until all of it has been taken; several threads may.

        Raises ``BrokenPipeError`` or ``ConnectionResetError`` when the peer is gone.
        """
        self._send_line(_line_of(message), ())

    def post(self, message: Message) -> None:
        """Queue one message and write what can be written at once.

        A peer that is gone, or that lets 128 MiB pile up, is not written to again.
        """
        self._post_line(_line_of(message), ())

    @property
    def wants_write(self) -> bool:
        """Whether posted bytes wait to be written."""
        return bool(self._outbox)

    @property
    def is_waiting(self) -> bool:
        """Whether posted bytes wait to be written, or ``drain`` has something to tell."""
        return self.wants_write or self.has_news

    @property
    def has_news(self) -> bool:
        """Whether ``drain`` has something to tell, although the descriptor may not be readable.

        One read may bring several messages, of which ``receive`` returns the first.
        """
        return bool(self._messages) or (self._is_deaf and not self.is_closed)

    def flush(self) -> None:
        """Write as many posted bytes as the peer takes now."""
        while self._outbox:
            line, fds = self._outbox[0]
            try:
                sent = self._write_some(line, fds)
            except BlockingIOError:
                return
            except OSError:  # it is gone, or too many descriptors are under way (unix(7))
                self._give_up()
                return
            self._outbox_bytes -= sent
            if sent == len(line):
                self._outbox.popleft()
            else:
                self._outbox[0] = (line[sent:], ())

    def serve(self, bound: Bound) -> Iterator[list[Message]]:
        """Write what is posted and yield what has come, until the peer's end or the bound.

        A peer that breaks the protocol counts as ended.
        """
        while not self.is_closed:
            self.flush()
            try:
                yield self.drain()
            except ChannelError:
                self.is_closed = self.is_broken = True
            if not bound.wait(self._is_ready):
                return

    def _is_ready(self, within_s: float) -> bool:
        """Wait until something has come, or something that waits can be written."""
        if self.is_closed:
            return True
        waiting = select.poll()  # select(2) knows no descriptor beyond 1023
        waiting.register(self._reads, select.POLLIN)
        if self.wants_write:
            is_one = self._reads == self._writes
            waiting.register(self._writes, select.POLLOUT | (select.POLLIN if is_one else 0))
        return bool(waiting.poll(1000 * within_s))

    def receive(self) -> Message | None:
        """Return the next message, waiting for it; ``None`` when the peer has closed."""
        while not self._messages and not self.is_closed:
            _wait_for(self._reads, select.POLLIN)
            with contextlib.suppress(BlockingIOError):
                self._read_once()
        return self._messages.popleft() if self._messages else None

    def drain(self) -> list[Message]:
        """Return all messages that have arrived, without waiting."""
        try:
            while not self.is_closed:
                self._read_once()
        except BlockingIOError:
            self.is_closed = self._is_deaf  # who is not written to any more is not waited for
        messages = list(self._messages)
        self._messages.clear()
        return messages

    def close(self) -> None:
        """Close the descriptors; closing twice is harmless."""
        self.is_closed = True
        self._outbox.clear()
        self._close_descriptors()
        self._reads = self._writes = -1

    def _close_descriptors(self) -> None:
        for fd in {self._reads, self._writes} - {-1}:
            os.close(fd)

    def _send_line(self, line: bytes, fds: tuple[int, ...]) -> None:
        with self._sending:
            while line:
                try:
                    line, fds = line[self._write_some(line, fds) :], ()
                except BlockingIOError:
                    _wait_for(self._writes, select.POLLOUT)

    def _post_line(self, line: bytes, fds: tuple[int, ...]) -> None:
        if self._is_deaf or self.is_closed:
            return
        self._outbox.append((line, fds))
        self._outbox_bytes += len(line)
        if self._outbox_bytes > _MAX_OUTBOX_BYTES:
            self._give_up()
        self.flush()
        if self._outbox:
            self.on_waiting()

    def _write_some(self, line: bytes, fds: tuple[int, ...]) -> int:
        """Write what the peer takes now; raise ``BlockingIOError`` if that is nothing."""
        return os.write(self._writes, line)

    def _give_up(self) -> None:
        """Write no more; earlier messages of the peer can still be read, then comes its end."""
        self._outbox.clear()
        self._outbox_bytes = 0
        self._is_deaf = True
        self.on_waiting()

    def _read_once(self) -> None:
        try:
            data = self._read_chunk()
        except ConnectionResetError:
            data = b""
        if not data:
            self.is_closed = True
            return
        self._inbox += data
        if b"\n" in data:
            *lines, rest = self._inbox.split(b"\n")
            self._inbox = rest
            self._messages.extend(self._decode(line) for line in lines)
        if len(self._inbox) > _MAX_LINE_BYTES:
            raise ChannelError(f"a message is longer than {_MAX_LINE_BYTES} bytes")

    def _read_chunk(self) -> bytes:
        return os.read(self._reads, _CHUNK_BYTES)

    def _decode(self, line: bytearray) -> Message:
        try:
            message = json.loads(line.decode())
        except ValueError as error:
            raise ChannelError(f"a message is no JSON: {bytes(line[:80])!r}") from error
        if not isinstance(message, dict):
            raise ChannelError(f"a message is no JSON object: {bytes(line[:80])!r}")
        return message


class Channel(LineChannel):
    """A connection to a process of this host, over a Unix socket: descriptors travel as well."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection.fileno(), connection.fileno())
        self._socket = connection
        self._fds: deque[int] = deque()

    @staticmethod
    def adopt(fd: int) -> Channel:
        """Return the channel over an inherited socket, which it owns from now on."""
        return Channel(socket.socket(fileno=fd))

    @property
    def peer_pid(self) -> int:
        """The process that connected, as the kernel knows it (``SO_PEERCRED``)."""
        return _credentials(self._socket)[0]

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Write one message, waiting until all of it has been taken; several threads may.

        Raises ``BrokenPipeError`` or ``ConnectionResetError`` when the peer is gone.
        """
        self._send_line(_line_of(_with(fds, message)), tuple(fds))

    def post(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Queue one message and write what can be written at once.

        ``fds`` must stay open until the message has left (``wants_write`` is
        false).  A peer that is gone, or that lets 128 MiB pile up, is not written to again.
        """
        self._post_line(_line_of(_with(fds, message)), tuple(fds))

    def detach(self) -> int:
        """Give the descriptor back, still open; the channel must not be used any more."""
        self._reads = self._writes = -1
        return self._socket.detach()

    def _close_descriptors(self) -> None:
        """Close the socket and the descriptors that no message has claimed."""
        while self._fds:
            os.close(self._fds.popleft())
        self._socket.close()

    def _write_some(self, line: bytes, fds: tuple[int, ...]) -> int:
        return socket.send_fds(self._socket, [line], fds) if fds else self._socket.send(line)

    def _give_up(self) -> None:
        super()._give_up()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _read_chunk(self) -> bytes:
        fds = array.array("i")
        space = socket.CMSG_SPACE(_MAX_FDS * fds.itemsize)
        data, ancillary, _, _ = self._socket.recvmsg(_CHUNK_BYTES, space, socket.MSG_CMSG_CLOEXEC)
        for level, kind, payload in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        self._fds.extend(fds)
        return data

    def _decode(self, line: bytearray) -> Message:
        message = super()._decode(line)
        if FDS in message:
            count = message[FDS]
            if not isinstance(count, int) or not 0 <= count <= len(self._fds):
                raise ChannelError(f"a message claims {count} of {len(self._fds)} descriptors")
            message[FDS] = [self._fds.popleft() for _ in range(count)]
        return message


class Listener:
    """A Unix socket that accepts connections of the same user only.

    Its directory should be private (0700).  A socket that a killed process has left at its
    path is replaced; one with a listener is not, and raises ``OSError``
    (``EADDRINUSE``).
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        _remove_stale(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _short_path(path) as name:
                self._socket.bind(name)
        except OSError:
            self._socket.close()
            raise
        path.chmod(0o600)
        self._socket.listen(1024)
        self._spare = _spare_descriptor()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def accept(self) -> Channel | None:
        """Return the next connection, None if it is another user's or already gone.

        Without a descriptor left for it, it is ended: its peer must not wait, and this
        process would find it again and again.
        """
        try:
            connection, _ = self._socket.accept()
        except (ConnectionAbortedError, BlockingIOError):
            return None
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._turn_away()
            return None
        if _credentials(connection)[1] != os.getuid():
            connection.close()
            return None
        return Channel(connection)

    def _turn_away(self) -> None:
        """End the next connection with the descriptor that was kept for this."""
        os.close(self._spare)
        with contextlib.suppress(OSError):
            self._socket.accept()[0].close()
        self._spare = _spare_descriptor()

    def close(self, *, is_removed: bool = True) -> None:
        """Stop listening, and remove the socket's file unless that is another one's by now."""
        os.close(self._spare)
        self._socket.close()
        if is_removed:
            self.path.unlink(missing_ok=True)


def connect(path: Path) -> Channel:
    """Connect to the process that listens at ``path``.

    Raises ``FileNotFoundError`` or ``ConnectionRefusedError`` if none listens there, and
    ``PermissionError`` if that is another user's process: it would say what it likes.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short_path(path) as name:
            connection.connect(name)
        if _credentials(connection)[1] != os.getuid():
            raise PermissionError(errno.EPERM, "another user's process listens there", str(path))
    except OSError:
        connection.close()
        raise
    return Channel(connection)


def pair() -> tuple[Channel, Channel]:
    """Return the two ends of a new connection."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    return Channel(left), Channel(right)


def _spare_descriptor() -> int:
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def _remove_stale(path: Path) -> None:
    """Remove a socket that has no listener any more."""
    with contextlib.suppress(FileNotFoundError):
        try:
            connect(path).close()
        except ConnectionRefusedError:
            path.unlink()


def _line_of(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _with(fds: Sequence[int], message: Message) -> Message:
    return {**message, FDS: len(fds)} if fds else message


def _wait_for(fd: int, events: int) -> None:
    poll = select.poll()
    poll.register(fd, events)
    poll.poll()


@contextlib.contextmanager
def _short_path(path: Path) -> Iterator[str]:
    """Name a socket by its directory's descriptor, since sun_path holds 107 bytes (unix(7))."""
    if len(os.fsencode(path)) < 100:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


def _credentials(connection: socket.socket) -> tuple[int, int]:
    """Return the process id and the user id of the peer."""
    credentials = array.array("i")
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 3 * credentials.itemsize)
    credentials.frombytes(option)
    return credentials[0], credentials[1]


Kind_co = TypeVar("Kind_co", covariant=True)


def to_message(message: object) -> Message:
    """Return a message as it travels."""
    return {"kind": type(message).__name__, **to_plain(message)}


class MessageKinds(Generic[Kind_co]):
    """The messages that one end of a link takes.

    Args:
        kinds: a union of dataclasses, or a single one; a class with subclasses stands for these.
    """

    def __init__(self, kinds: Any) -> None:
        named = get_args(kinds) or (kinds,)
        found = [each for kind in named for each in kind.__subclasses__() or (kind,)]
        self._by_name = {kind.__name__: kind for kind in found}

    def __contains__(self, line: Message) -> bool:
        """Whether a line is one of these messages."""
        return line.get("kind") in self._by_name

    def decode(self, line: Message) -> Kind_co:
        """Return a message that has come; its descriptors stay in the line.

        Raises:
            WrongValue: it is none of these messages, or a field is wrong.
        """
        kind = self._by_name.get(line.get("kind", ""))
        if kind is None:
            raise WrongValue(f"there is no message {line.get('kind')!r} here")
        fields = {name: value for name, value in line.items() if name not in ("kind", FDS)}
        found: Kind_co = from_plain(kind, fields)
        return found
