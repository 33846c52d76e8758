"""Files of the script and of its hooks: one overlay between Python's own functions and the disk.

Every worker runs every line of the script, and every hook of every callback.  A file that one of
these opens to be written lies in a private folder of the run directory (*staged*), until it is
certain whose file is the real one; see the walks in DESIGN.md.  A *round* is all hooks that run
between two agreements of the workers.  On workers other than the first its files are staged, and
its other changes of the disk are put off (*deferred*).

An agreement drops both.  A file that is still open stays staged, and the length that it has now is
noted.  So is one that the script has opened before the training, and holds open.  If the first
worker dies before the agreement, nobody knows how far it came.  The next first worker makes its own
round real, and exchanges a file that is still open beneath the file object.

The lengths of growing files belong to the checkpoint.  What is written into such a file in a launch
that resumes, before the training goes on, is in it already, so it is dropped.

The overlay exchanges Python's own ways to change files, once, and acts only in the thread that
runs the script: threads of the saver write checkpoints meanwhile.  Libraries that write files from
C are not seen.  Those of Keras and TensorFlow are in `saves`.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import itertools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.checkpoint.tensor import digest_of
from holdfast.runtime.script.calls import exchange

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


NUMBERS = itertools.count(1)
"""Names in the private folder, which lasts for all trainings of a process."""
_TAIL_BYTES = 4096
"""Bytes before a cut that must be what they were: another program may have written the file."""


class Length(NamedTuple):
    """The length of a growing file at an agreement, in bytes, and the digest of its last ones."""

    size: int
    tail: str


@dataclass(slots=True)
class Opened:
    """A file that is open to be written."""

    path: Path
    file: Callable[[], Any]
    """Returns the file object, None if nobody has it any more."""
    appends: bool
    staged: Path | None
    """Where it lies until it is real, None if it is."""
    agreed: int = 0
    """Bytes of the staged file that are in the real one, or belong to earlier rounds."""
    is_scripts: bool = False
    """Whether a line of the script has opened it, before the training."""
    is_agreed: bool = False
    """Whether an agreement has seen it: then the first worker has the real one."""

    @property
    def is_closed(self) -> bool:
        """Whether nobody can write to it any more."""
        file = self.file()
        return file is None or bool(file.closed)

    @property
    def grows(self) -> bool:
        """Whether the bytes that it has will stay."""
        return self.appends or not self.is_closed

    def flush(self) -> None:
        """Let the disk have all that was written."""
        if not self.is_closed:
            with contextlib.suppress(ValueError, OSError):
                self.file().flush()


@dataclass(slots=True)
class Overlay:
    """One worker's view of the files of its hooks, and of those that its script holds open.

    Args:
        is_first: whether this worker's files are real.
        scratch: returns a private folder, which exists; asked for at the first need.
        tell: says a line to the user.
        wrote: hears of each file that is opened to be written for the run.
        held: what the script holds open.
    """

    is_first: bool
    scratch: Callable[[], Path]
    tell: Callable[[str], None]
    wrote: Callable[[str], None] = lambda path: None
    held: Iterable[Opened] = ()
    lengths: dict[str, Length] = field(default_factory=dict)
    """Of each growing file, by its absolute path, at the last agreement."""
    _opened: list[Opened] = field(init=False)
    _deferred: list[Callable[[], None]] = field(default_factory=list)
    is_resuming: bool = False
    """Whether ``on_train_begin`` runs again, for a training that has begun long ago."""
    may_repeat: bool = False
    """Whether a launch that was lost may have done what hooks do now."""
    rounds: int = 0
    """Rounds that are over: what they have put off was dropped, or done."""

    def __post_init__(self) -> None:
        """Take over what the script holds open: it grows from now on."""
        self._opened = list(self.held)

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
            if opened.is_closed:
                opened.staged.unlink()
                self._opened.remove(opened)
            elif self.is_first:
                self._make_real(opened)

    def open(
        self, real_open: Callable[..., Any], path: Any, mode: str, *more: Any, **by: Any
    ) -> Any:
        """Open a file for a hook; on a worker that is not the first it is staged."""
        absolute = _absolute(path)
        if not set(mode) & set("wax+"):
            return real_open(self._staged(absolute) or path, mode, *more, **by)
        is_real = self.is_first and not (self.is_resuming and str(absolute) in self.lengths)
        staged = None if is_real else self._place(absolute, copies="r" in mode)
        file = real_open(staged or path, mode, *more, **by)
        self.wrote(str(absolute))
        self._opened.append(Opened(absolute, lambda: file, "a" in mode, staged))
        return file

    def defers(self, change: Callable[[], None]) -> bool:
        """Return whether a change of the disk is put off, because the first worker makes it."""
        if not self.is_first:
            self._deferred.append(change)
        return not self.is_first

    def moves(self, path: Any, to: Any | None) -> bool:
        """Return whether a file is staged; if so it is moved, or removed without ``to``."""
        source = _absolute(path)
        found = [o for o in self._opened if o.path == source and o.staged is not None]
        for opened in found:
            if to is None:
                self._opened.remove(opened)
            else:
                opened.path = _absolute(to)
        return bool(found)

    def measure(self) -> dict[str, Length]:
        """Return the lengths of growing files; the first worker tells them to the others."""
        found = dict(self.lengths)
        for opened in self._opened:
            opened.flush()
            self._make_real(opened)  # what the script has opened before
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
        for opened in self._opened:
            opened.flush()
            opened.is_agreed = True
            if opened.is_scripts and not opened.is_closed and str(opened.path) not in lengths:
                self._make_real(opened)  # it is named by the worker, and the first one has none
            if opened.staged is not None:
                opened.agreed = opened.staged.stat().st_size
                if opened.is_closed:
                    opened.staged.unlink()
        self._opened = [opened for opened in self._opened if not opened.is_closed]

    def take_over(self) -> None:
        """Become the first worker: make real what this round has staged and deferred."""
        if self.is_first:
            return
        self.is_first = True
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
        with own_work():
            folder = self.scratch() / f"{next(NUMBERS)}-folder"
            folder.mkdir()
        return folder

    def _make_real(self, opened: Opened) -> None:
        """Write what a staged file holds of this round to where it belongs."""
        staged, opened.staged = opened.staged, None
        if staged is None:
            return
        if opened.is_closed and not opened.appends:
            put(staged, opened.path)
            staged.unlink()
            return
        with staged.open("rb") as source:
            source.seek(opened.agreed)
            news = source.read()
        self._cut_for(opened, news)
        opened.path.parent.mkdir(parents=True, exist_ok=True)
        with opened.path.open("ab") as target:
            target.write(news)
        if not opened.is_closed:
            _exchange(opened.file(), opened.path)
        staged.unlink()

    def _cut_for(self, opened: Opened, news: bytes) -> None:
        """Take away what the dead worker may have written of this round."""
        known = self.lengths.get(str(opened.path))
        if known is not None:
            self._cut(opened.path, known)
        elif not opened.appends and opened.path.exists():
            os.truncate(opened.path, min(opened.agreed, opened.path.stat().st_size))
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
        place = self.scratch() / f"{next(NUMBERS)}-{absolute.name}"
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


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Let a path have what is written beside it meanwhile, at once for all who read it."""
    beside = path.with_name(f".{os.getpid()}-{path.name}")
    yield beside
    os.replace(beside, path)


def put(staged: Path, path: Path) -> None:
    """Let a path have the content of a staged file."""
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        shutil.copymode(path, staged)
    with replacing(path) as beside:
        try:
            os.link(staged, beside)
        except OSError:  # it is on another disk
            shutil.copy(staged, beside)


def _exchange(file: Any, path: Path) -> None:
    """Let an open file object write to the end of ``path`` from now on."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.lseek(handle, 0, os.SEEK_END)
        os.dup2(handle, file.fileno(), inheritable=False)
    finally:
        os.close(handle)


_Function = Callable[..., Any]
_Handler = Callable[..., Any]
"""What stands for a function in a hook; it gets the overlay and the function first."""


_acting: tuple[Overlay, int] | None = None
"""The overlay of the hooks that run now, and their thread."""
_rules: Mapping[str, Callable[..., Any]] = {}
"""What stands for a function where no hook runs; each gets Python's own as its first argument."""
_here = threading.local()


def act_by(rules: Mapping[str, Callable[..., Any]]) -> None:
    """Let functions, by their names, act by these rules outside of hooks from now on."""
    global _rules  # noqa: PLW0603  (one process runs one script)
    _rules = rules
    _exchange_all()


@contextlib.contextmanager
def guarding(files: Overlay) -> Iterator[None]:
    """Let hooks that run inside see the disk through ``files``."""
    global _acting  # noqa: PLW0603
    _exchange_all()
    before, _acting = _acting, (files, threading.get_ident())
    try:
        yield
    finally:
        _acting = before


@contextlib.contextmanager
def own_work() -> Iterator[None]:
    """Change the disk as it is, past the overlay."""
    before, _here.is_own = getattr(_here, "is_own", False), True
    try:
        yield
    finally:
        _here.is_own = before


@functools.cache
def _exchange_all() -> None:
    for (module, name), handler in _HANDLERS.items():
        exchange(module, name, functools.partial(_act, getattr(module, name), name, handler))
    sources = sys.modules.get("numpy.lib._datasource")  # it has kept the plain one, for savetxt
    if sources is not None:
        sources._file_openers._file_openers[None] = builtins.open


def _act(
    plain: Callable[..., Any], name: str, handler: _Handler | None, /, *arguments: Any, **by: Any
) -> Any:
    rule = _rules.get(name)
    files = _acting[0] if _acting is not None and _acting[1] == threading.get_ident() else None
    if getattr(_here, "is_own", False) or (rule is None and files is None):
        return plain(*arguments, **by)
    function = plain if rule is None else functools.partial(rule, plain)
    with own_work():
        if handler is None or files is None:
            return function(*arguments, **by)
        return handler(files, function, *arguments, **by)


def _open(
    files: Overlay, function: _Function, file: Any, mode: str = "r", *more: Any, **by: Any
) -> Any:
    if isinstance(file, int) or by.get("opener") is not None or not is_regular(file):
        return function(file, mode, *more, **by)
    return files.open(function, file, mode, *more, **by)


def _put_off(files: Overlay, function: _Function, *arguments: Any, **by: Any) -> Any:
    if files.defers(lambda: function(*arguments, **by)):
        return None
    return function(*arguments, **by)


def _move(files: Overlay, function: _Function, src: Any, dst: Any, **by: Any) -> None:
    if files.is_first or not files.moves(src, dst):
        _put_off(files, function, src, dst, **by)


def _remove(files: Overlay, function: _Function, path: Any, **by: Any) -> None:
    if files.is_first or not files.moves(path, None):
        with contextlib.suppress(*[FileNotFoundError] * files.may_repeat):
            _put_off(files, function, path, **by)


def _make_folder(files: Overlay, function: _Function, *arguments: Any, **by: Any) -> None:
    with contextlib.suppress(*[FileExistsError] * files.is_resuming):
        _put_off(files, function, *arguments, **by)


def _absolute(path: Any) -> Path:
    return Path(os.path.abspath(os.fsdecode(path)))


def is_regular(path: Any) -> bool:
    """Return whether the path names a plain file, or none yet: devices and pipes are left alone."""
    return os.path.isfile(path) or not os.path.exists(path)


_HANDLERS: dict[tuple[Any, str], _Handler | None] = {
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
    (tempfile, "mkdtemp"): None,  # it makes its folder by os.mkdir
}
