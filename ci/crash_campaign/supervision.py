"""A victim in a process of its own, whose calls to the file system wait for this process.

A victim is a fork of this process, which has loaded everything already.  Each of its calls
on files below its folder waits until ``decide`` has said what becomes of it, and so does
each word that it says.  The calls of all of its threads are counted together, so the n-th
of a name is nearly always the same one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from seccomp import Listener, Notice, SeccompMissing, hand_over

KILL = -1
PASS = 0
SAY = "say"
"""The name of the call by which a victim says a word."""
CHANGES = frozenset(
    {"mkdir", "mkdirat", "rmdir", "unlink", "unlinkat", "rename", "renameat", "renameat2"}
    | {"link", "linkat", "fallocate", "ftruncate", "write", "pwrite64", "pwritev", "pwritev2"}
    | {"fsync", "fdatasync"}
)
ENDS_WITHIN_S = 60.0
_HERE = (1 << 32) - 100  # AT_FDCWD as an unsigned number
_LOW = (1 << 32) - 1
_TWO_NAMES = frozenset({"rename", "renameat", "renameat2", "link", "linkat"})
_AT = frozenset(
    {"openat", "mkdirat", "newfstatat", "unlinkat", "renameat", "renameat2", "linkat", "statx"}
)
_BY_PATH = frozenset({"open", "stat", "lstat", "rename", "mkdir", "rmdir", "link", "unlink"})
_LONGEST_PATH = 4096

Say: TypeAlias = Callable[[str], None]
Work: TypeAlias = Callable[[Say], None]


@dataclass(frozen=True, slots=True)
class Call:
    """The ``number``-th call of its name, from 1, on ``path``."""

    name: str
    number: int
    path: str
    flags: int = 0

    def __str__(self) -> str:
        return f"{self.name} #{self.number} ({self.path})"

    @property
    def changes(self) -> bool:
        """Whether it may change what is on the disk, or make that durable."""
        return self.name in CHANGES or self.creates

    @property
    def creates(self) -> bool:
        """Whether it opens a file that it may create."""
        return self.name in ("open", "openat") and bool(self.flags & os.O_CREAT)


Decide: TypeAlias = Callable[[Call], int]
"""Returns an errno, ``KILL`` or ``PASS``; the call has not happened yet."""


@dataclass(slots=True)
class Ended:
    """How a victim ended: exit code or minus its signal, its words, what it wrote, its calls."""

    code: int = 0
    said: list[str] = field(default_factory=list)
    errors: str = ""
    calls: list[Call] = field(default_factory=list)
    hangs: bool = False


def why_not() -> str | None:
    """Return why system calls cannot be held here, None if they can."""
    try:
        ended = run_victim(lambda say: say("x"), Path("/nowhere"), lambda _: PASS)
    except SeccompMissing as error:
        return f"system calls cannot be held: {error}"
    return None if ended.said == ["x"] else f"system calls cannot be held: {ended.errors}"


def run_victim(work: Work, folder: Path, decide: Decide, heard: Say = lambda _: None) -> Ended:
    """Fork, let ``work`` run below ``folder``; ``heard`` is given each word at once."""
    ours, theirs = socket.socketpair()
    said_read, said_write = os.pipe()
    errors = os.memfd_create("crash-errors")
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        ours.close()
        _be_victim(work, theirs, said_write, errors)
    theirs.close()
    os.close(said_write)
    try:
        hold = _Hold(child, said_read, str(folder), decide, heard)
        hold.run(ours)
        hold.ended.errors = _all_of(errors)
        return hold.ended
    finally:
        ours.close()
        for descriptor in (said_read, errors):
            os.close(descriptor)


class _Hold:
    """The parent's hand on one victim."""

    def __init__(self, child: int, said: int, folder: str, decide: Decide, heard: Say) -> None:
        self._child, self._said, self._folder = child, said, folder
        self._pipe = os.readlink(f"/proc/self/fd/{said}")
        self._decide, self._heard = decide, heard
        self._counts: Counter[str] = Counter()
        self._rest = b""
        self.ended = Ended()

    def run(self, connection: socket.socket) -> None:
        """Answer the calls of the victim until it has ended."""
        process = os.pidfd_open(self._child)
        listener = None
        try:
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 1)
            if descriptors:
                listener = Listener(descriptors[0])
                self._answer_all(process, listener)
        except BaseException:
            os.kill(self._child, signal.SIGKILL)
            raise
        finally:
            _, status = os.waitpid(self._child, 0)
            os.close(process)
            if listener is not None:
                listener.close()
        self._hear()
        self.ended.code = os.waitstatus_to_exitcode(status)
        if not descriptors:
            raise SeccompMissing("the kernel refuses a filter")

    def _answer_all(self, process: int, listener: Listener) -> None:
        poll = select.poll()
        poll.register(process, select.POLLIN)
        poll.register(listener.fileno(), select.POLLIN)
        while True:
            ready = dict(poll.poll(ENDS_WITHIN_S * 1000))
            if process in ready:
                return
            if not ready:
                self.ended.hangs = True
                os.kill(self._child, signal.SIGKILL)
            elif ready[listener.fileno()] & select.POLLIN:
                self._answer(listener)
            else:
                poll.unregister(listener.fileno())

    def _answer(self, listener: Listener) -> None:
        notice = listener.receive()
        if notice is None:
            return
        call = self._call_of(notice)
        found = PASS
        if call is not None:
            self._hear()
            self.ended.calls.append(call)
            found = self._decide(call)
        if found == KILL:
            os.kill(self._child, signal.SIGKILL)
        else:
            listener.answer(notice, found)

    def _hear(self) -> None:
        """Take the words that the victim has said."""
        while select.select([self._said], [], [], 0)[0] and (data := os.read(self._said, 1 << 16)):
            *lines, self._rest = (self._rest + data).split(b"\n")
            for line in lines:
                self.ended.said.append(line.decode())
                self._heard(line.decode())

    def _call_of(self, notice: Notice) -> Call | None:
        """Return the call if it counts: it is on a name below the folder, or it is a word."""
        try:
            path = _path_of(notice)
        except OSError:
            return None  # it has died, or the descriptor is closed
        name = notice.name
        if path == self._pipe and name == "write":
            name = SAY
        elif not (path == self._folder or path.startswith(f"{self._folder}/")):
            return None
        self._counts[name] += 1
        shown = path.removeprefix(self._folder).lstrip("/") or "."
        flags = notice.arguments[2 if name == "openat" else 1] if "open" in name else 0
        return Call(name, self._counts[name], shown, flags)


def _path_of(notice: Notice) -> str:
    """Return the path of a call's file; of a call with two names the second one."""
    first, second, third, fourth, *_ = notice.arguments
    if notice.name in _AT:
        low, text = (third, fourth) if notice.name in _TWO_NAMES else (first, second)
        return _joined(notice.thread, low & _LOW, _text_at(notice.thread, text))
    if notice.name in _BY_PATH:
        text = second if notice.name in _TWO_NAMES else first
        return _joined(notice.thread, _HERE, _text_at(notice.thread, text))
    return os.readlink(f"/proc/{notice.thread}/fd/{first & _LOW}")


def _joined(thread: int, directory: int, name: str) -> str:
    if name.startswith("/"):
        return name
    link = "cwd" if directory == _HERE else f"fd/{directory}"
    found = os.readlink(f"/proc/{thread}/{link}")
    return f"{found}/{name}" if name else found


def _text_at(thread: int, address: int) -> str:
    with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        room = min(_LONGEST_PATH, 4096 - address % 4096)
        found = memory.read(room)
        if b"\0" not in found:
            found += memory.read(_LONGEST_PATH)
    return found.split(b"\0", 1)[0].decode(errors="replace")


def _all_of(descriptor: int) -> str:
    return os.pread(descriptor, 1 << 20, 0).decode(errors="replace")


def _be_victim(work: Work, connection: socket.socket, said: int, errors: int) -> None:
    """Work, and leave with 0, or 1 for an exception; never returns."""
    code = 1
    with contextlib.suppress(BaseException):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        for descriptor in (1, 2):
            os.dup2(errors, descriptor)
        try:
            hand_over(connection)
            connection.close()
            work(lambda word: _say(said, word))
            code = 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _say(pipe: int, text: str) -> None:
    os.write(pipe, text.replace("\n", " ").encode() + b"\n")
