"""A file system whose calls go to a directory, except for those that the rules of a test change.

It is a process of its own, as a file server is.  Usage: ``python faulty_server.py JSON``, with
the fields of ``ServerSettings``.  The rules come over a Unix socket, one JSON object a line.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import socketserver
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mfusepy
from faults import FaultTable, Rule, failure


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """What a faulty file system serves, where, and how a client may remember it.

    ``remembers_s`` is how long the kernel takes its own word for names, missing names and
    attributes, as a client of NFS does.  ``clock_skew_s`` is added to the times of all files.
    Without ``tells_kinds`` a listing has names only (``DT_UNKNOWN``).
    """

    served: str
    mount: str
    socket: str
    remembers_s: float = 0.0
    clock_skew_s: int = 0
    tells_kinds: bool = True


def _met(serve: Callable[..., Any]) -> Callable[..., Any]:
    """Let the rules change a call."""

    @functools.wraps(serve)
    def wrapped(self: FaultyFiles, path: str, *arguments: Any) -> Any:
        rule = self.faults.meet(serve.__name__, path)
        if rule is None:
            return serve(self, path, *arguments)
        time.sleep(rule.delay_s)
        if rule.hangs:
            self.faults.wait_replaced(rule)
        if not rule.error:
            return serve(self, path, *arguments)
        if rule.is_done:
            serve(self, path, *arguments)
        raise failure(rule)

    return wrapped


class FaultyFiles(mfusepy.Operations):  # type: ignore[misc]
    """The calls, one method each, carried out below a directory."""

    use_ns = True

    def __init__(self, settings: ServerSettings, faults: FaultTable) -> None:
        self._settings = settings
        self.faults = faults

    def _real(self, path: str) -> str:
        return self._settings.served + path

    @_met
    def getattr(self, path: str, handle: int | None = None) -> dict[str, Any]:
        found = os.lstat(self._real(path)) if handle is None else os.fstat(handle)
        fields = {name: getattr(found, name) for name in dir(found) if name.startswith("st_")}
        for name in ("st_atime", "st_mtime", "st_ctime"):
            fields[name] = fields[f"{name}_ns"] + self._settings.clock_skew_s * 10**9
        return fields

    @_met
    def readdir(self, path: str, handle: int) -> Iterator[tuple[str, dict[str, int] | None, int]]:
        return iter([self._entry(path, name) for name in (".", "..", *os.listdir(handle))])

    def _entry(self, path: str, name: str) -> tuple[str, dict[str, int] | None, int]:
        if not self._settings.tells_kinds:
            return name, None, 0
        found = os.lstat(os.path.join(self._real(path), name))
        return name, {"st_mode": stat.S_IFMT(found.st_mode), "st_ino": found.st_ino}, 0

    @_met
    def opendir(self, path: str) -> int:
        return os.open(self._real(path), os.O_RDONLY | os.O_DIRECTORY)

    @_met
    def fsyncdir(self, path: str, _datasync: int, handle: int) -> None:
        os.fsync(handle)

    def releasedir(self, path: str, handle: int) -> None:
        os.close(handle)

    @_met
    def mkdir(self, path: str, mode: int) -> None:
        os.mkdir(self._real(path), mode)

    def mknod(self, path: str, mode: int, device: int) -> None:
        os.mknod(self._real(path), mode, device)

    @_met
    def rmdir(self, path: str) -> None:
        os.rmdir(self._real(path))

    @_met
    def unlink(self, path: str) -> None:
        os.unlink(self._real(path))

    @_met
    def rename(self, path: str, new: str) -> None:
        os.rename(self._real(path), self._real(new))

    @_met
    def link(self, path: str, source: str) -> None:
        os.link(self._real(source), self._real(path))

    @_met
    def symlink(self, path: str, source: str) -> None:
        os.symlink(source, self._real(path))

    @_met
    def readlink(self, path: str) -> str:
        return os.readlink(self._real(path))

    @_met
    def create(self, path: str, mode: int, flags: int) -> int:
        return os.open(self._real(path), flags & ~os.O_APPEND | os.O_CREAT, mode)

    @_met
    def open(self, path: str, flags: int) -> int:
        # The kernel gives offsets itself, and O_APPEND would overrule them.
        return os.open(self._real(path), flags & ~(os.O_APPEND | os.O_CREAT | os.O_EXCL))

    @_met
    def read(self, path: str, size: int, offset: int, handle: int) -> bytes:
        return os.pread(handle, size, offset)

    @_met
    def write(self, path: str, data: bytes, offset: int, handle: int) -> int:
        return os.pwrite(handle, data, offset)

    @_met
    def fallocate(self, path: str, mode: int, offset: int, size: int, handle: int) -> None:
        os.posix_fallocate(handle, offset, size)

    @_met
    def fsync(self, path: str, _datasync: int, handle: int) -> None:
        os.fsync(handle)

    @_met
    def flock(self, path: str, handle: int, kind: int) -> None:
        fcntl.flock(handle, kind)

    @_met
    def flush(self, path: str, handle: int) -> None:
        """Answer close(2)."""

    def release(self, path: str, handle: int) -> None:
        os.close(handle)

    @_met
    def truncate(self, path: str, size: int, handle: int | None = None) -> None:
        os.truncate(self._real(path) if handle is None else handle, size)

    @_met
    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self._real(path))
        return {name: getattr(found, name) for name in dir(found) if name.startswith("f_")}

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._real(path), mode)

    def chown(self, path: str, user: int, group: int) -> None:
        os.chown(self._real(path), user, group, follow_symlinks=False)

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> None:
        now = time.time_ns()
        os.utime(self._real(path), ns=times or (now, now))


class _Orders(socketserver.StreamRequestHandler):
    """Answers each line that a test sends."""

    def handle(self) -> None:
        for line in self.rfile:
            self.wfile.write(json.dumps(self._answer(json.loads(line))).encode() + b"\n")

    def _answer(self, order: dict[str, Any]) -> dict[str, int]:
        faults: FaultTable = self.server.faults  # type: ignore[attr-defined]
        if "rules" in order:
            faults.set([Rule.of(fields) for fields in order["rules"]])
            return {}
        return {"struck": faults.wait_struck(order["index"], order["count"], order["timeout_s"])}


class _OrderServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True

    def __init__(self, path: str, faults: FaultTable) -> None:
        super().__init__(path, _Orders)
        self.faults = faults


def main(settings: ServerSettings) -> None:
    """Serve until the file system is unmounted."""
    faults = FaultTable()
    orders = _OrderServer(settings.socket, faults)
    threading.Thread(target=orders.serve_forever, daemon=True).start()
    remembers_s = settings.remembers_s
    os.umask(0)  # the one of the client counts
    mfusepy.FUSE(
        FaultyFiles(settings, faults),
        settings.mount,
        foreground=True,
        fsname="holdfast-test",
        use_ino=True,
        entry_timeout=remembers_s,
        negative_timeout=remembers_s,
        attr_timeout=remembers_s,
        default_permissions=True,
    )


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(ServerSettings(**json.loads(sys.argv[1])))
