"""What the script itself writes, outside of trainings: the worker that comes first makes it real.

All workers make the same calls, and so does each launch.  There is no agreement between them.
DESIGN.md has the walk of a file.  What libraries write for the script is made by the worker that
comes first, while the others wait.  A file that is still open when a training begins is one of that
training from then on (`Overlay`).

A script makes a folder for its results, and clears it first, as if it were alone:

* a folder that another worker or launch has made counts as made;
* what the run has made, and this process has not made again yet, is not removed.  What was there
  before the run is removed once;
* a temporary folder is one for all workers and launches, because a relaunch reads what an earlier
  launch has written.  It is removed when the scripts of all workers have ended.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import stat
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.calls import CallingScript, is_in_training, stand_in
from holdfast.runtime.script.overlay import NUMBERS, Opened, is_regular, own_work, put


class SharedWrites:
    """What the script of one process writes, each time by one worker of a launch.

    The n-th write of a path at a moment is made by the worker that comes to it first, and the
    others find it complete.  If it dies, the next one writes.

    Args:
        record: that of the run.
        script: knows the trainings between which the script is.
        step: names the launch and the step that it has come to.
    """

    def __init__(
        self, record: ScriptRecord, script: CallingScript, step: Callable[[], str] = str
    ) -> None:
        self.record = record
        self.script = script
        self._step = step
        self._counts: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        self._is_writing = False

    def once(
        self,
        path: str,
        write: Callable[[], Any],
        rest: Callable[[], Any] = lambda: None,
        key: str | None = None,
    ) -> Any:
        """Return ``write()``, or ``rest()`` if ``path`` has been written by this call.

        With a ``key`` of its own the write is made once for the run.
        """
        if self._is_writing:  # a part of a larger write
            return write()
        place = self._place(path)
        self._counts[place] += 1
        number = self._counts[place]
        key = key or f"written {place} {number}"
        with self.record.turn():
            is_made = not self.is_forked and self.record.find(key) is not None
            if is_made and (os.path.exists(path) or self.has_gone(path)):
                return rest()  # not each host need have the file
            self.record.reach(f"newest {place}", number)
            found = self.alone(write)
            self.record.first(key, 1)
            return found

    def take_away(self, path: str, take: Callable[[], Any]) -> Any:
        """Return ``take()``, which removes or moves a file, unless another worker has made it."""
        place = self._place(path)
        if not self._counts[place]:
            return take()
        self._taken[place] += 1
        key = f"taken {place} {self._taken[place]}"
        with self.record.turn():
            is_gone = self.has_gone(path) and not os.path.lexists(path)
            if is_gone or self.record.find(key) is not None:
                return None
            self.record.reach(f"gone {place}", self._counts[place])
            found = take()
            self.record.first(key, 1)
            return found

    def alone(self, write: Callable[[], Any]) -> Any:
        """Return ``write()``, which this worker makes and perhaps no other."""
        before, self._is_writing = self._is_writing, True
        try:
            return write()
        finally:
            self._is_writing = before

    def is_behind(self, path: str) -> bool:
        """Return whether another worker has written ``path`` more often at this moment."""
        place = self._place(path)
        return (self.record.largest(f"newest {place}") or 0) > self._counts[place] > 0

    def has_gone(self, path: str) -> bool:
        """Return whether a worker has removed or moved what this one has written last."""
        place = self._place(path)
        return (self.record.largest(f"gone {place}") or 0) >= self._counts[place] > 0

    @property
    def is_forked(self) -> bool:
        """Whether the script has forked this process, which goes its own way."""
        return self.script.is_forked

    @property
    def moment(self) -> str:
        """The launch, and how far the script has come in it."""
        return f"{self._step()} {self.script.moment}"

    def _place(self, path: str) -> str:
        return f"{path} at {self.moment}"


class ScriptFiles:
    """The files that the script of one process opens.

    Args:
        writes: makes files real.
        run_dir: the run directory, whose own files are left alone.
        scratch: returns a private folder, which exists.
    """

    def __init__(self, writes: SharedWrites, run_dir: Path, scratch: Callable[[], Path]) -> None:
        self._record = writes.record
        self._script = writes.script
        self._writes = writes
        self._run_dir = run_dir.resolve()
        self._scratch = scratch
        self._own: dict[str, Path] = {}
        """What this process has written at this moment, by the path where it belongs."""
        self._rewritten: set[str] = set()
        self._entries: Counter[str] = Counter()
        self._open: list[tuple[Opened, Callable[..., None]]] = []
        self._hdf5: dict[int, tuple[Any, Callable[[], None]]] = {}
        """HDF5 files that are open to be written: what h5py has of each, and what closes it."""

    @property
    def rules(self) -> dict[str, Callable[..., Any]]:
        """What stands for functions of Python in the script."""
        return {"open": self._open_file, "rename": self._move, "replace": self._move}

    def share_hdf5(self, module: Any) -> None:
        """Let HDF5 files of the script be written as others are."""
        stand_in(module.File, "__init__", self._open_hdf5)
        stand_in(module.File, "close", self._close_hdf5)

    def begin_training(self) -> list[Opened]:
        """Return the files that the script holds open; what it has written is where it belongs."""
        for path in [*self._own]:
            self.forget(path)
        return [opened for opened, _ in self._open if not opened.is_closed]

    def forget(self, path: str) -> None:
        """Hear that a file is written otherwise: what this worker has of it is old."""
        own = self._own.pop(path, None)
        if own is not None:
            own.unlink(missing_ok=True)

    def finish(self) -> None:
        """Make real what the script has left open, and Python has written out."""
        for file, _ in [*self._hdf5.values()]:
            file.close()
        for _, then in self._open:
            then(f" at {self._writes.moment}")

    def conclude(self) -> None:
        """Take what was left open for written, because all scripts have ended well."""
        for _, then in self._open:
            then()

    def _open_file(
        self, plain: Callable[..., Any], file: Any, mode: str = "r", *more: Any, **by: Any
    ) -> Any:
        """Stand for ``open``."""
        line = self._line_that_opens(file, by)
        if line is None or "x" in mode:  # that is how scripts make locks
            return plain(file, mode, *more, **by)
        where = _absolute(file)
        if not set(mode) & set("wa+"):
            return self._read(where, lambda found: plain(found or file, mode, *more, **by))
        staged = self._stage(where, mode)
        if staged is None:
            return plain(file, mode, *more, **by)
        entry = self._next_entry(where, line) if "a" in mode else None
        begin = 0 if entry is None else self._begin(staged, entry)
        raw = _Told(staged, mode.translate(_KINDS), os.fspath(file))
        made = _stacked(raw, mode, *more, **by)
        opened = Opened(Path(where), weakref.ref(made), "a" in mode, staged, begin, True)
        raw.then = functools.partial(self._make_real, opened, entry)
        self._open = [(one, then) for one, then in self._open if not one.is_closed]
        self._open.append((opened, raw.then))
        return made

    def _open_hdf5(
        self, plain: Callable[..., None], file: Any, name: Any, mode: str = "r", **by: Any
    ) -> None:
        """Stand for ``h5py.File.__init__``, which opens files in C."""
        line = self._line_that_opens(name, by)
        if line is None or mode not in ("r", "r+", "w", "a"):
            plain(file, name, mode, **by)
            return
        where = _absolute(name)
        if mode == "r":
            self._read(where, lambda found: plain(file, found or name, mode, **by))
            return
        staged = self._stage(where, "r+" if mode != "w" and os.path.exists(where) else "w")
        if staged is not None:  # a program that another thread starts may hold a lock too long
            by.setdefault("locking", False)
        plain(file, staged or name, mode, **by)
        if staged is not None:
            opened = Opened(Path(where), lambda: None, appends=False, staged=staged)
            self._hdf5[id(file)] = file, functools.partial(self._make_real, opened, None)

    def _close_hdf5(self, plain: Callable[..., None], file: Any) -> None:
        """Stand for ``h5py.File.close``."""
        plain(file)
        _, then = self._hdf5.pop(id(file), (None, lambda: None))
        then()

    def _stage(self, where: str, mode: str) -> Path | None:
        """Return where a file is staged, with what it has; None if Python refuses to open it."""
        if not _may_write(where) or ("r" in mode and not os.path.exists(where)):
            return None
        staged = self._scratch() / f"{next(NUMBERS)}-{os.path.basename(where)}"
        if "w" not in mode and os.path.exists(where):
            with own_work():
                self._read(where, lambda found: shutil.copyfile(found or where, staged))
        return staged

    def _line_that_opens(self, file: Any, by: dict[str, Any]) -> str | None:
        """Return the script's line that opens a plain file of its own, by its name."""
        if not isinstance(file, (str, bytes, os.PathLike)) or by.get("opener") is not None:
            return None
        line = self._script.line_behind(sys._getframe(2))
        if line is None or not is_regular(file):
            return None
        where = Path(_absolute(file))
        return None if self._run_dir in where.resolve().parents else line

    def _next_entry(self, where: str, line: str) -> str:
        """Return the key of what a line appends to a file; it is anew where that is anew."""
        key = f"to {where} by {line}"
        if where in self._rewritten:
            key += f" after a write at {self._writes.moment}"
        self._entries[key] += 1
        return f"{key}, {self._entries[key]}"

    def _begin(self, staged: Path, entry: str) -> int:
        """Return where an entry begins: behind it stands what others have appended since."""
        size = staged.stat().st_size if staged.exists() else 0
        begin = min(size, int(self._record.first(f"begin {entry}", size)))
        if begin < size:
            os.truncate(staged, begin)
        return begin

    def _read(self, where: str, read: Callable[[Path | None], Any]) -> Any:
        """Read a file where it is, or where this worker has what it has itself written."""
        for opened, _ in reversed(self._open):
            if str(opened.path) == where and opened.staged is not None and not opened.is_closed:
                opened.flush()
                return read(opened.staged)
        own = self._own.get(where)
        try:
            found = read(None)  # before the look: another worker may write it at any time
        except FileNotFoundError:
            if own is None or not self._writes.has_gone(where):
                raise
            return read(own)
        if own is None or not self._writes.is_behind(where):
            return found
        if isinstance(found, io.IOBase):
            found.close()
        return read(own)

    def _move(self, plain: Callable[..., Any], src: Any, dst: Any, **by: Any) -> Any:
        """Stand for ``os.rename`` and ``os.replace``."""
        if by or self._script.line_behind(sys._getframe(1)) is None:
            return plain(src, dst, **by)
        path, to = _absolute(src), _absolute(dst)
        self.forget(path)
        self.forget(to)
        return self._writes.take_away(path, lambda: plain(src, dst))

    def _make_real(self, opened: Opened, entry: str | None, moment: str = "") -> None:
        """Put a file that is closed into its place, unless another worker has done so.

        An entry of a log is known in later launches, but for one of a ``moment`` only.
        """
        if self._script.is_forked:
            return
        staged, where = opened.staged, str(opened.path)
        key = None if entry is None else f"appended {entry}"
        if staged is None or opened.is_agreed:  # it is real already, or the first worker's is
            if key is not None and not moment:
                self._record.first(key, 1)
            return
        opened.staged = None
        if key is None:
            self._rewritten.add(where)
        elif self._record.find(key) is None:
            key += moment
        with own_work():
            self._writes.once(
                where,
                lambda: put(staged, opened.path) if key is None else _append(staged, opened),
                key=key,
            )
            self.forget(where)
        self._own[where] = staged


_KINDS = str.maketrans("", "", "bt")


class _Told(io.FileIO):
    """A staged file that tells when it was closed."""

    def __init__(self, staged: Path, mode: str, name: Any) -> None:
        super().__init__(str(staged), mode)
        self.name = name
        self.then: Callable[[], None] = lambda: None

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open:
            self.then()


def _stacked(
    raw: _Told,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    **_: Any,
) -> Any:
    """Return what ``open`` makes of a file that is open to be written."""
    if "b" in mode and buffering == 0:
        return raw
    kind = io.BufferedRandom if "+" in mode else io.BufferedWriter
    buffer = kind(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))


def _may_write(where: str) -> bool:
    """Return whether a file can be put there; else Python's own ``open`` says why not."""
    if where.startswith(("/dev/", "/proc/", "/sys/")):
        return False
    folder = os.path.dirname(where)
    is_free = not os.path.exists(where) or os.access(where, os.W_OK)
    return is_free and os.path.isdir(folder) and os.access(folder, os.W_OK)


def _append(staged: Path, opened: Opened) -> None:
    """Append what is new in a staged file, unless a worker has died right after it did so."""
    entry = staged.read_bytes()[opened.agreed :]
    with open(opened.path, "ab+") as file:
        file.seek(opened.agreed)
        if file.read() != entry:
            file.write(entry)


class SharedFolders:
    """The folders of one process that runs a script, and what it removes.

    Args:
        writes: those of the script.
        run_dir: the run directory; in it everything stays as it is.
        since: the time of day when the job began; older folders are not the job's.
    """

    def __init__(self, writes: SharedWrites, run_dir: Path, since: float) -> None:
        self._record = writes.record
        self._script = writes.script
        self._writes = writes
        self._run_dir = run_dir.resolve()
        self._since = since
        self._made_here: set[str] = set()
        self._temporary: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        """How later launches know each temporary folder."""
        self._to_remove: set[str] = set()
        self.before_removal: list[Callable[[str], None]] = []
        """Called with a path before the script removes it."""

    @property
    def rules(self) -> dict[str, Callable[..., Any]]:
        """What stands for functions of Python; ``os.makedirs`` and ``pathlib`` call these."""
        removals = dict.fromkeys(("remove", "unlink", "rmtree"), self._remove)
        return {"mkdir": self._mkdir, "mkdtemp": self._mkdtemp, **removals}

    def wrote(self, path: str) -> None:
        """Hear that a hook has made a file for the run, or that the script has saved a model."""
        if not is_in_training():
            self._made_here.add(path)
        self._record.reach(f"made {path}", self._script.moment)

    def lasting_name(self, path: str) -> str:
        """Return how later launches know a path; a temporary folder may lie elsewhere then."""
        for folder, name in self._names.items():
            if path.startswith(f"{folder}/"):
                return name + path.removeprefix(folder)
        return path

    def remove_temporary(self) -> None:
        """Remove the folders that the script has given back, when all scripts have ended."""
        with own_work():
            for path in self._to_remove:
                shutil.rmtree(path, ignore_errors=True)

    def _mkdir(
        self, plain: Callable[..., None], path: Any, mode: int = 0o777, *, dir_fd: Any = None
    ) -> None:
        where = _absolute(path)
        if dir_fd is not None or self._is_ours(where):
            plain(path, mode, dir_fd=dir_fd)
            return
        with self._record.turn():
            try:
                plain(path, mode)
                self._record.reach(f"made {where}", self._script.moment)
            except FileExistsError:
                found = os.stat(where)
                if not stat.S_ISDIR(found.st_mode) or found.st_ctime < self._since:
                    raise  # no worker's script has made the folder since the job began
        self._made_here.add(where)

    def _mkdtemp(self, plain: Callable[..., str], *arguments: Any, **by: Any) -> str:
        made = plain(*arguments, **by)
        line = self._script.line_behind(sys._getframe(1))
        if line is None:
            return made  # a library's, which has another name on each worker
        self._temporary[line] += 1
        name = f"temporary folder {self._temporary[line]} of {line}"
        # Another batch job may have another place for temporary files, and not this one.
        lasting: str = self._record.first(f"{name} in {os.path.dirname(made)}", made)
        if lasting != made:
            os.rmdir(made)
            with contextlib.suppress(FileExistsError):
                os.mkdir(lasting, 0o700)
        self._names[lasting] = name
        return lasting

    def _remove(self, plain: Callable[..., None], path: Any, *arguments: Any, **by: Any) -> None:
        is_path = isinstance(path, (str, bytes, os.PathLike)) and by.get("dir_fd") is None
        where = _absolute(path) if is_path else ""
        is_scripts = is_path and self._script.line_behind(sys._getframe(1)) is not None
        if not is_scripts or self._is_ours(where):
            plain(path, *arguments, **by)
            return
        if where in self._names:
            self._to_remove.add(where)
            return
        with self._record.turn():
            made = self._record.largest(f"made {where}")
            is_runs = made is not None and made >= self._script.moment
            is_gone = not os.path.lexists(where) and self._record.find(f"removed {where}")
            if is_gone or (is_runs and where not in self._made_here):
                return
            for hear in self.before_removal:
                hear(where)
            self._record.first(f"removed {where}", 1)
            self._writes.take_away(where, lambda: plain(path, *arguments, **by))

    def _is_ours(self, where: str) -> bool:
        resolved = Path(where).resolve()
        return self._run_dir in (resolved, *resolved.parents)
