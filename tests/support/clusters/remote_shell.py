"""A remote shell over TCP for hosts of a cluster: ``remote_shell.py HOST COMMAND...``.

It does what ``ssh`` without a terminal does: the words are joined for a shell on the host, stdin,
stdout and stderr travel, and so does the exit code.  A lost connection is 255 here.  There, the
command finds its stdin at its end and nobody behind its stdout; nothing kills it.  All goes
through the network of the hosts, so a cut holds it up as it does any program.

Only Python's standard library is here: the file is also run by its path, without packages.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading

PORT = 514
SESSION = "bed-session"
"""The name of the process that serves one command."""
_HEADER = struct.Struct("!cI")
_STDIN, _STDIN_END, _STDOUT, _STDERR, _EXIT = b"I", b"E", b"O", b"R", b"X"
_CHUNK = 65536
_LOST = 255
_ENVIRONMENT = {
    "HOME": "/root",
    "LOGNAME": "root",
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "SHELL": "/bin/sh",
    "USER": "root",
}
"""What a login has; a remote shell passes none of its caller's variables on."""


class _Frames:
    """Blocks of bytes with a kind, over one connection."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._source = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, kind: bytes, data: bytes = b"") -> None:
        with self._lock:
            self._connection.sendall(_HEADER.pack(kind, len(data)) + data)

    def receive(self) -> tuple[bytes, bytes]:
        """Return the next block; raises ``ConnectionError`` when there will be none."""
        header = self._source.read(_HEADER.size)
        if len(header) < _HEADER.size:
            raise ConnectionResetError("the other side has ended")
        kind, length = _HEADER.unpack(header)
        return kind, self._source.read(length)


def serve(connection: socket.socket) -> None:
    """Run the command that the caller sends, in this process's name; never returns."""
    try:
        frames = _Frames(connection)
        _, command = frames.receive()
        process = subprocess.Popen(
            ["/bin/sh", "-c", os.fsdecode(command)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_ENVIRONMENT,
            cwd="/root",
            start_new_session=True,
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        outputs = [
            threading.Thread(target=_forward, args=(process.stdout.fileno(), frames, _STDOUT)),
            threading.Thread(target=_forward, args=(process.stderr.fileno(), frames, _STDERR)),
        ]
        feeder = threading.Thread(target=_feed, args=(frames, process.stdin.fileno()), daemon=True)
        for thread in (feeder, *outputs):
            thread.start()
        code = process.wait()
        for thread in outputs:
            thread.join()
        frames.send(_EXIT, bytes([code if code >= 0 else _LOST]))
    except OSError:
        os._exit(_LOST)
    os._exit(0)


def _forward(source: int, frames: _Frames, kind: bytes) -> None:
    """Send what the command writes; without a connection, nobody reads its pipes any more."""
    try:
        while data := os.read(source, _CHUNK):
            frames.send(kind, data)
    except OSError:
        os._exit(_LOST)


def _feed(frames: _Frames, stdin: int) -> None:
    """Write what arrives to the command's stdin; all pipes end with the connection."""
    is_open = True
    while True:
        try:
            kind, data = frames.receive()
        except OSError:
            os._exit(_LOST)
        if kind == _STDIN_END and is_open:
            os.close(stdin)
            is_open = False
        elif is_open:
            with contextlib.suppress(BrokenPipeError):
                _write(stdin, data)


def _write(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]


def _send_stdin(frames: _Frames) -> None:
    with contextlib.suppress(OSError):
        while data := os.read(0, _CHUNK):
            frames.send(_STDIN, data)
        frames.send(_STDIN_END)


def main(host: str, words: list[str]) -> int:
    """Run a command on a host; return its exit code."""
    try:
        frames = _Frames(socket.create_connection((host, PORT)))
        frames.send(b"C", os.fsencode(" ".join(words)))
    except OSError as error:
        print(f"remote_shell: {host}: {error}", file=sys.stderr)
        return _LOST
    threading.Thread(target=_send_stdin, args=(frames,), daemon=True).start()
    try:
        while True:
            kind, data = frames.receive()
            if kind == _EXIT:
                return data[0]
            _write(1 if kind == _STDOUT else 2, data)
    except BrokenPipeError:
        return _LOST
    except OSError:
        print(f"remote_shell: connection to {host} closed", file=sys.stderr)
        return _LOST


if __name__ == "__main__":
    os._exit(main(sys.argv[1], sys.argv[2:]))
