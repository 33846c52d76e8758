"""Files that callbacks write: those of the first worker are real, and the next one goes on.

Theory.  Every worker runs every hook of every callback.  The hooks that run between two agreements
of the workers are a *round*.  While a round runs, this module stands between the hooks and the
disk:

* on the first worker files are what they always are;
* on the others a file that is opened to be written lies in a private folder of the run directory
  (*staged*).  Other changes of the disk are put off (*deferred*).

An agreement proves that the first worker has finished the round.  So staged files and deferred
changes of the round are dropped.  A file that is still open stays staged, and the length that it
has now is noted.

If the first worker dies before the agreement, nobody knows how far it came.  The next first worker
makes its own round real: it repeats the changes, and it cuts files that grow to the length that
they had at the last agreement before it appends.  A file that is still open is exchanged beneath
the file object, which the callback goes on to use.

The lengths of growing files belong to the checkpoint.  A launch that restores it cuts them to these
lengths.  What ``on_train_begin`` then writes into such a file is in it already, so it is dropped.
A callback that keeps the file open goes on at its end.

The guard exchanges Python's own ways to change files, and only for the thread that runs the hooks:
threads of the saver write checkpoints meanwhile.  Libraries that write files from C are not seen.
Those of Keras are in `first_saves`, TensorBoard's in `event_files`.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import itertools
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from holdfast.checkpoint.digest import digest_of

_NAME = ".private"


class PrivateFolder:
    """The private folder of one worker; it exists once it is asked for.

    A worker that was killed leaves its folder behind.  Those that outlive it remove it at the end
    of the script, and the workers of the next launch before.  Those of the next job have its name.
    """

    def __init__(self, run_dir: Path, worker: int) -> None:
        self._all = run_dir / _NAME
        self._own = self._all / str(worker)

    def __call__(self) -> Path:
        """Return the folder."""
        while not self._own.is_dir():
            # Another worker may remove the empty folder above at any moment.
            with contextlib.suppress(FileNotFoundError):
                self._all.mkdir(exist_ok=True)
                self._own.mkdir(exist_ok=True)
            if not self._all.parent.is_dir():
                raise FileNotFoundError(f"{self._all.parent} is gone")
        return self._own

    def clear(self, living: Collection[int]) -> None:
        """Remove this folder, and those of all workers that are not living."""
        shutil.rmtree(self._own, ignore_errors=True)
        names = {str(worker) for worker in living} - {self._own.name}
        with contextlib.suppress(OSError):
            for folder in self._all.iterdir():
                if folder.name not in names:
                    shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it is not there, or others are in it
            self._all.rmdir()


_NUMBERS = itertools.count(1)
"""Names in the private folder, which lasts for all trainings of a process."""
_TAIL_BYTES = 4096
"""Bytes before a cut that must be what they were: another program may have written the file."""


@dataclass(frozen=True, slots=True)
class Length:
    """The length of a growing file at an agreement, in bytes, and the digest of its last ones."""

    size: int
    tail: str

    def as_json(self) -> list[Any]:
        """Return the length for notes and messages."""
        return [self.size, self.tail]


@dataclass(slots=True)
class _Opened:
    """A file that a hook has opened to be written."""

    path: Path
    file: Any
    appends: bool
    staged: Path | None
    """Where it lies on a worker that is not the first, None on the first."""
    agreed: int = 0
    """Bytes of the staged file that belong to earlier rounds."""

    @property
    def grows(self) -> bool:
        return self.appends or not self.file.closed

    def flush(self) -> None:
        if not self.file.closed:
            with contextlib.suppress(ValueError, OSError):
                self.file.flush()


class HeldLogs(Protocol):
    """Logs that are private on a worker that is not the first."""

    def lead(self) -> None:
        """Become the first worker: write to the real files."""

    def agreed(self) -> None:
        """Hear that the first worker has written what was written here."""


@dataclass(slots=True)
class FirstFiles:
    """One worker's view of the files of its callbacks.

    Args:
        is_first: whether this worker's files are real.
        scratch: returns a private folder, which exists; asked for at the first need.
        tell: says a line to the user.
        wrote: hears of each file that is opened to be written for the run.
        place: returns how the first worker names a path; the lengths are known by that.
    """

    is_first: bool
    scratch: Callable[[], Path]
    tell: Callable[[str], None]
    wrote: Callable[[str], None] = lambda path: None
    place: Callable[[str], str] = lambda path: path
    logs: list[HeldLogs] = field(default_factory=list)
    """Logs that the script itself holds open; its hooks may write to them."""
    lengths: dict[str, Length] = field(default_factory=dict)
    """Of each growing file, by its absolute path, at the last agreement."""
    _opened: list[_Opened] = field(default_factory=list)
    _deferred: list[Callable[[], None]] = field(default_factory=list)
    is_resuming: bool = False
    """Whether ``on_train_begin`` runs again, for a training that has begun long ago."""
    may_repeat: bool = False
    """Whether a launch that was lost may have done what hooks do now."""
    is_own_work: bool = False
    """Whether files are changed for this object, not for a hook: the guard lets that through."""
    rounds: int = 0
    """Rounds that are over: what they have put off was dropped, or done."""

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        """Change the disk within a hook, past the guard."""
        before, self.is_own_work = self.is_own_work, True
        try:
            yield
        finally:
            self.is_own_work = before

    def restore(self, lengths: Mapping[str, Any]) -> None:
        """Go on in the files of a checkpoint: cut them, before ``on_train_begin``."""
        self.lengths = {path: Length(*found) for path, found in lengths.items()}
        self.is_resuming = self.may_repeat = True
        if self.is_first:
            for path, length in self.lengths.items():
                self._cut(Path(path), length)

    def resumed(self) -> None:
        """Hear that ``on_train_begin`` has run: files that it holds open go on at their ends."""
        self.is_resuming = False
        growing = [o for o in self._opened if o.staged is not None and str(o.path) in self.lengths]
        for opened in growing:
            assert opened.staged is not None
            opened.flush()
            opened.agreed = opened.staged.stat().st_size
            if opened.file.closed:
                opened.staged.unlink()
                self._opened.remove(opened)
            elif self.is_first:
                self._make_real(opened)

    def open(
        self, real_open: Callable[..., Any], path: Any, mode: str, *more: Any, **by: Any
    ) -> Any:
        """Open a file for a hook; on a worker that is not the first it is staged."""
        absolute = self.absolute(path)
        if not set(mode) & set("wax+"):
            return real_open(self._staged(absolute) or path, mode, *more, **by)
        is_real = self.is_first and not (self.is_resuming and str(absolute) in self.lengths)
        staged = None if is_real else self._place(absolute, copies="r" in mode)
        file = real_open(staged or path, mode, *more, **by)
        self.wrote(os.path.abspath(os.fsdecode(path)))
        self._opened.append(_Opened(absolute, file, "a" in mode, staged))
        return file

    def defers(self, change: Callable[[], None]) -> bool:
        """Return whether a change of the disk is put off, because the first worker makes it."""
        if not self.is_first:
            self._deferred.append(change)
        return not self.is_first

    def moves(self, path: Any, to: Any | None) -> bool:
        """Return whether a file is staged; if so it is moved, or removed without ``to``."""
        source = self.absolute(path)
        found = [o for o in self._opened if o.path == source and o.staged is not None]
        for opened in found:
            if to is None:
                self._opened.remove(opened)
            else:
                opened.path = self.absolute(to)
        return bool(found)

    def measure(self) -> dict[str, Length]:
        """Return the lengths of growing files; the first worker tells them to the others."""
        found = dict(self.lengths)
        for opened in self._opened:
            opened.flush()
            if not opened.grows:
                found.pop(str(opened.path), None)
            elif opened.path.is_file():
                found[str(opened.path)] = length_of(opened.path)
        return found

    def agreed(self, lengths: Mapping[str, Length]) -> None:
        """Hear that the first worker has finished the round, with these lengths."""
        self.lengths = dict(lengths)
        self.rounds += 1
        self._deferred.clear()
        for held in self.logs:
            held.agreed()
        for opened in self._opened:
            opened.flush()
            if opened.staged is not None:
                opened.agreed = opened.staged.stat().st_size
                if opened.file.closed:
                    opened.staged.unlink()
        self._opened = [opened for opened in self._opened if not opened.file.closed]

    def take_over(self) -> None:
        """Become the first worker: make real what this round has staged and deferred."""
        if self.is_first:
            return
        self.is_first = True
        for held in self.logs:
            held.lead()
        self.rounds += 1
        deferred, self._deferred = self._deferred, []
        for change in deferred:
            with contextlib.suppress(FileNotFoundError, FileExistsError):
                change()
        for opened in self._opened:
            opened.flush()
            self._make_real(opened)

    def cut(self, path: Path) -> None:
        """Cut a growing file to its length at the last agreement."""
        if str(path) in self.lengths:
            self._cut(path, self.lengths[str(path)])

    def new_folder(self) -> Path:
        """Return a new private folder, which is empty."""
        with self.own_work():
            folder = self.scratch() / f"{next(_NUMBERS)}-folder"
            folder.mkdir()
        return folder

    def _make_real(self, opened: _Opened) -> None:
        """Write what a staged file holds of this round to where it belongs."""
        staged, opened.staged = opened.staged, None
        if staged is None:
            return
        if opened.file.closed and not opened.appends:
            _replace(staged, opened.path)
            return
        with staged.open("rb") as source:
            source.seek(opened.agreed)
            news = source.read()
        self._cut_for(opened, news)
        opened.path.parent.mkdir(parents=True, exist_ok=True)
        with opened.path.open("ab") as target:
            target.write(news)
        if not opened.file.closed:
            _exchange(opened.file, opened.path)
        staged.unlink()

    def absolute(self, path: Any) -> Path:
        """Return how the first worker names a path."""
        return Path(self.place(os.path.abspath(os.fsdecode(path))))

    def _cut_for(self, opened: _Opened, news: bytes) -> None:
        """Take away what the dead worker may have written of this round."""
        known = self.lengths.get(str(opened.path))
        if known is not None:
            self._cut(opened.path, known)
        elif not opened.appends and opened.path.exists():
            os.truncate(opened.path, 0)
        elif opened.path.exists():
            # The file began to grow in this round: its length before is not known.
            size = opened.path.stat().st_size
            written = opened.path.read_bytes()[-len(news) :] if news else b""
            if written == news:
                os.truncate(opened.path, size - len(news))

    def _cut(self, path: Path, length: Length) -> None:
        """Cut a file to its length at an agreement, unless it is another file by now."""
        if not path.is_file() or path.stat().st_size == length.size:
            return
        if path.stat().st_size < length.size or length_of(path, length.size) != length:
            self.tell(
                f"{path} is not the file that the callbacks of this run wrote: it is not cut, "
                "and they go on at its end"
            )
            return
        os.truncate(path, length.size)

    def _staged(self, absolute: Path) -> Path | None:
        """Return where the newest content of a file lies, if hooks of this worker staged it."""
        for opened in reversed(self._opened):
            if opened.path == absolute and opened.staged is not None:
                opened.flush()
                return opened.staged
        return None

    def _place(self, absolute: Path, *, copies: bool) -> Path:
        """Return a new place for a staged file, with the content of the real one if asked."""
        place = self.scratch() / f"{next(_NUMBERS)}-{absolute.name}"
        before = self._staged(absolute) or absolute
        if copies and before.is_file():
            shutil.copyfile(before, place)
        return place


def length_of(path: Path, size: int | None = None) -> Length:
    """Return the length of a file, or what it would be if the file ended at ``size``."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size if size is None else size
        file.seek(max(0, size - _TAIL_BYTES))
        return Length(size, digest_of(file.read(min(size, _TAIL_BYTES)))[:16])


def _replace(staged: Path, path: Path) -> None:
    """Move a staged file to its place, at once for all who read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.move(staged, beside)
    os.replace(beside, path)


def _exchange(file: Any, path: Path) -> None:
    """Let an open file object write to the end of ``path`` from now on."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.lseek(handle, 0, os.SEEK_END)
        os.dup2(handle, file.fileno(), inheritable=False)
    finally:
        os.close(handle)


_Handler = Callable[[FirstFiles, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


@contextlib.contextmanager
def guarding(files: FirstFiles) -> Iterator[None]:
    """Let hooks that run inside see the disk through ``files``."""
    thread = threading.get_ident()
    real = {place: getattr(*place) for place in _HANDLERS}
    for (module, name), function in real.items():
        setattr(module, name, _guarded(files, thread, function, _HANDLERS[module, name]))
    try:
        yield
    finally:
        for (module, name), function in real.items():
            setattr(module, name, function)


def _guarded(
    files: FirstFiles, thread: int, function: Callable[..., Any], handler: _Handler
) -> Callable[..., Any]:
    def guarded(*arguments: Any, **keywords: Any) -> Any:
        if threading.get_ident() != thread or files.is_own_work:
            return function(*arguments, **keywords)
        with files.own_work():
            return handler(files, function, arguments, keywords)

    return guarded


def _open(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> Any:
    def opened(file: Any, mode: str = "r", *more: Any, **others: Any) -> Any:
        if isinstance(file, int) or others.get("opener") is not None or not _is_regular(file):
            return function(file, mode, *more, **others)
        return files.open(function, file, mode, *more, **others)

    return opened(*arguments, **by)


def _put_off(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> Any:
    if files.defers(lambda: function(*arguments, **by)):
        return None
    return function(*arguments, **by)


def _move(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> None:
    def moves(src: Any, dst: Any, **_: Any) -> bool:
        return files.moves(src, dst)

    if files.is_first or not moves(*arguments, **by):
        _put_off(files, function, arguments, by)


def _remove(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> None:
    def moves(path: Any, **_: Any) -> bool:
        return files.moves(path, None)

    if files.is_first or not moves(*arguments, **by):
        with contextlib.suppress(*[FileNotFoundError] * files.may_repeat):
            _put_off(files, function, arguments, by)


def _make_folder(
    files: FirstFiles, function: Callable[..., Any], arguments: tuple[Any, ...], by: dict[str, Any]
) -> None:
    with contextlib.suppress(*[FileExistsError] * files.is_resuming):
        _put_off(files, function, arguments, by)


def _is_regular(path: Any) -> bool:
    """Return whether the path names a plain file, or none yet: devices and pipes are left alone."""
    return os.path.isfile(path) or not os.path.exists(path)


_HANDLERS: dict[tuple[Any, str], _Handler] = {
    (builtins, "open"): _open,
    (io, "open"): _open,
    (os, "replace"): _move,
    (os, "rename"): _move,
    (os, "remove"): _remove,
    (os, "unlink"): _remove,
    (os, "mkdir"): _make_folder,
    (os, "rmdir"): _put_off,
    (os, "symlink"): _put_off,
    (os, "link"): _put_off,
    (os, "chmod"): _put_off,
    (os, "utime"): _put_off,
    (os, "truncate"): _put_off,
    (shutil, "rmtree"): _put_off,
}
