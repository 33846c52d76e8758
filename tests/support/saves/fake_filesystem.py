"""A file system in memory that fails on request and loses what was not synced.

Theory: every file and every directory has a *live* state, which calls see, and a
*durable* one, which a power cut leaves.  In between lies the list of changes that
no sync has covered yet.  A cut may leave any subset of them on the disk, in their
order.  The last write of a file may be there only in part.  ext4 and XFS promise more
than this, so code that survives here survives there.

A sync that fails marks the changes as clean without making them durable, as Linux
does: they may still be lost even if a later sync succeeds.

Invariant: as long as no sync has failed, the live state is the durable one with all
pending changes applied in order.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from random import Random
from typing import TypeAlias

from holdfast.checkpoint.filesystem import DirectoryName, FileSystem


class Survival(Enum):
    """Which of the changes that no sync has covered survive a power cut."""

    NOTHING = "nothing"
    NAMES = "names, but no contents"
    ANYTHING = "any subset, writes possibly torn"


class PowerCut(Exception):
    """The power is off: no call works until ``FakeFileSystem.after_power_cut``."""


@dataclass(slots=True)
class _File:
    """Contents, and the writes (offset, bytes) that are not durable."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    lost: list[tuple[int, bytes]] = field(default_factory=list)


@dataclass(slots=True)
class _Directory:
    """Names, and the changes of names that are not durable."""

    live: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)
    lost: list[_Change] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Change:
    """Drop the name ``old``, and give its node, or else ``node``, the name ``new``."""

    old: str | None
    new: str | None
    node: _Node | None = None

    def apply(self, names: dict[str, _Node]) -> None:
        """Change ``names``; a change of a name that is missing does nothing."""
        node = self.node if self.old is None else names.pop(self.old, None)
        if node is not None and self.new is not None:
            names[self.new] = node


_Node: TypeAlias = "_File | _Directory"


class FakeFileSystem(FileSystem):
    """A file system in memory, below one directory that exists from the start.

    ``calls`` lists every call so far; the n-th one is number n - 1.
    """

    def __init__(self, root: Path = Path("/run")) -> None:
        self.root = root
        self.calls: list[str] = []
        self._tree = _Directory()
        self._open: dict[int, tuple[_File, Path]] = {}
        self._failures: dict[int, int] = {}
        self._shortened: set[int] = set()
        self._cut: int | None = None

    def fail_at(self, call: int, number: int) -> None:
        """Let the call of this number fail with ``OSError(number)``, before it does anything."""
        self._failures[call] = number

    def shorten_at(self, call: int) -> None:
        """Let the call of this number, if it reads or writes, move about half the bytes."""
        self._shortened.add(call)

    def cut_power_at(self, call: int) -> None:
        """Let the call of this number, and all later ones, raise ``PowerCut``."""
        self._cut = call

    def after_power_cut(self, survival: Survival, seed: int = 0) -> FakeFileSystem:
        """Return the file system that a power cut now leaves on the disk."""
        found = FakeFileSystem(self.root)
        found._tree = _surviving_directory(self._tree, survival, Random(seed))
        return found

    def mkdir(self, path: Path) -> None:
        self._enter("mkdir", path)
        self._add(path, _Directory())

    def create_exclusive(self, path: Path) -> int:
        self._enter("create_exclusive", path)
        file = _File()
        self._add(path, file)
        return self._handle(file, path)

    def open_read(self, path: Path) -> int:
        self._enter("open_read", path)
        file = self._find(path)
        if not isinstance(file, _File):
            raise _error(errno.EINVAL)
        return self._handle(file, path)

    def size(self, handle: int) -> int:
        file, _ = self._opened("size", handle)
        return len(file.live)

    def allocate(self, handle: int, size_bytes: int) -> None:
        file, _ = self._opened("allocate", handle)
        self._change(file, len(file.live), bytes(max(size_bytes - len(file.live), 0)))

    def write(self, handle: int, buffers: Sequence[memoryview], offset: int) -> int:
        file, is_short = self._opened("write", handle)
        data = b"".join(buffers)
        data = data[: (len(data) + 1) // 2] if is_short else data
        self._change(file, offset, data)
        return len(data)

    def read(self, handle: int, buffer: memoryview, offset: int) -> int:
        file, is_short = self._opened("read", handle)
        data = file.live[offset : offset + len(buffer)]
        data = data[: (len(data) + 1) // 2] if is_short else data
        buffer[: len(data)] = data
        return len(data)

    def uncache(self, handle: int) -> None:
        self._opened("uncache", handle)

    def start_writeback(self, handle: int, offset: int, size_bytes: int) -> None:
        """Make nothing durable; mark the contents as clean if a test lets this call fail."""
        self._sync("start_writeback", handle)

    def fsync(self, handle: int) -> None:
        """Make the contents durable; mark them as clean if a test lets this call fail."""
        file = self._sync("fsync", handle)
        contents = bytearray(file.durable)
        for change in file.pending:
            _put(contents, *change)
        file.durable = bytes(contents)
        file.pending.clear()

    def close(self, handle: int) -> None:
        path = self._open.pop(handle)[1]
        self._enter("close", path)

    def fsync_directory(self, path: Path) -> None:
        """Make the names durable; mark them as clean if a test lets this call fail."""
        try:
            self._enter("fsync_directory", path)
        except InterruptedError:
            raise
        except OSError:
            directory = self._directory(path)
            directory.lost += directory.pending
            directory.pending.clear()
            raise
        directory = self._directory(path)
        for change in directory.pending:
            change.apply(directory.durable)
        # What was lost of a name cannot come after what is durable of it.
        named = {name for change in directory.pending for name in (change.old, change.new) if name}
        directory.lost = [c for c in directory.lost if not named & {c.old, c.new}]
        directory.pending.clear()

    def rename_noreplace(self, source: Path, target: Path) -> None:
        self._enter("rename_noreplace", target)
        assert source.parent == target.parent, "the fake renames inside a directory only"
        self._find(source)
        names = self._directory(source.parent)
        if target.name in names.live:
            raise _error(errno.EEXIST)
        _record(names, _Change(source.name, target.name))

    def list(self, path: Path) -> tuple[str, ...]:
        self._enter("list", path)
        live = self._directory(path).live
        kinds = {True: DirectoryName, False: str}
        return tuple(sorted(kinds[isinstance(node, _Directory)](n) for n, node in live.items()))

    def is_directory(self, path: Path) -> bool:
        self._enter("is_directory", path)
        try:
            return isinstance(self._find(path), _Directory)
        except FileNotFoundError:
            return False

    def identity(self, path: Path) -> tuple[int, int]:
        self._enter("identity", path)
        return 0, id(self._find(path))

    def unlink(self, path: Path) -> None:
        self._enter("unlink", path)
        if isinstance(self._find(path), _Directory):
            raise _error(errno.EISDIR)
        _record(self._directory(path.parent), _Change(path.name, None))

    def rmdir(self, path: Path) -> None:
        self._enter("rmdir", path)
        if self._directory(path).live:
            raise _error(errno.ENOTEMPTY)
        _record(self._directory(path.parent), _Change(path.name, None))

    def _enter(self, operation: str, path: Path) -> None:
        """Count a call, and let it fail if it is its turn."""
        number = len(self.calls)
        self.calls.append(f"{operation} {path}")
        if self._cut is not None and number >= self._cut:
            raise PowerCut
        if number in self._failures:
            raise _error(self._failures[number])

    def _opened(self, operation: str, handle: int) -> tuple[_File, bool]:
        """Return an open file, and whether this call must move only half the bytes."""
        file, path = self._open[handle]
        self._enter(operation, path)
        return file, len(self.calls) - 1 in self._shortened

    def _sync(self, operation: str, handle: int) -> _File:
        """Return an open file; if the call fails, mark its changes clean but not durable."""
        file = self._open[handle][0]
        try:
            self._opened(operation, handle)
        except InterruptedError:
            raise
        except OSError:
            file.lost += file.pending
            file.pending.clear()
            raise
        return file

    def _handle(self, file: _File, path: Path) -> int:
        handle = max(self._open, default=2) + 1
        self._open[handle] = (file, path)
        return handle

    def _change(self, file: _File, offset: int, data: bytes) -> None:
        _put(file.live, offset, data)
        file.pending.append((offset, data))

    def _add(self, path: Path, node: _Node) -> None:
        directory = self._directory(path.parent)
        if path.name in directory.live:
            raise _error(errno.EEXIST)
        _record(directory, _Change(None, path.name, node))

    def _find(self, path: Path) -> _Node:
        node: _Node = self._tree
        if path in self.root.parents:
            return _Directory()
        for part in path.relative_to(self.root).parts:
            if not isinstance(node, _Directory):
                raise _error(errno.ENOTDIR)
            if part not in node.live:
                raise _error(errno.ENOENT)
            node = node.live[part]
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise _error(errno.ENOTDIR)
        return node


def _record(directory: _Directory, change: _Change) -> None:
    change.apply(directory.live)
    directory.pending.append(change)


def _put(contents: bytearray, offset: int, data: bytes) -> None:
    contents.extend(bytes(max(offset + len(data) - len(contents), 0)))
    contents[offset : offset + len(data)] = data


def _surviving_directory(found: _Directory, survival: Survival, random: Random) -> _Directory:
    names = dict(found.durable)
    for change in [*found.lost, *found.pending]:
        if survival is Survival.NAMES or (survival is Survival.ANYTHING and random.random() < 0.5):
            change.apply(names)
    nodes = {name: _surviving(node, survival, random) for name, node in names.items()}
    return _Directory(live=dict(nodes), durable=dict(nodes))


def _surviving(node: _Node, survival: Survival, random: Random) -> _Node:
    if isinstance(node, _Directory):
        return _surviving_directory(node, survival, random)
    contents = bytearray(node.durable)
    if survival is Survival.ANYTHING:
        for offset, data in [*node.lost, *node.pending]:
            if random.random() < 0.5:
                _put(contents, offset, data[: random.randint(0, len(data))])
    return _File(live=contents, durable=bytes(contents))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))
