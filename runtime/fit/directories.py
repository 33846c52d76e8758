"""Directories and files that all workers of a job, and all launches of a run, make and remove.

A script makes a directory for its results, and in plain Python it is the only one that does.  Here
every worker runs that line, and so does a script that begins again after a relaunch.  So:

* one that another worker or launch has made counts as made;
* a script that clears its results at its start must not remove those of the run.  What the run has
  made, and this process has not made again yet, is left.  What was there before the run is
  removed once.

A *temporary directory* of the first worker is the run's.  It has the same one in all launches,
because a relaunch reads what an earlier launch has written.  Each other worker has one of its own,
as in plain Python: what all of them write at the same time, as an array that each reads back, must
not lie in one file.  What callbacks write is there once, in that of the first worker.  The others
find it in their own as links: at once for a file that a hook writes, and for all that is there when
a training has ended.

A file of ``Dataset.cache(file)`` is one that every worker would fill.  TensorFlow lets one pass at
a time do so, and keeps others away by a lock file.  Here every worker looks at its first batch, and
more than one may read a whole pass.  So each fills a cache of its own, in each launch.

A checkpoint or a SavedModel that the script writes with TensorFlow is written by one worker, and
found by all (`SharedWrites`).
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import shutil
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.runtime.callbacks.callback_files import HeldLogs
from holdfast.runtime.callbacks.first_saves import SharedWrites
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import CallingScript, is_in_training
from holdfast.runtime.worker.script_draws import exchange

_plain_mkdir, _plain_unlink, _plain_rmtree = os.mkdir, os.unlink, shutil.rmtree


class TemporaryDirectories:
    """Those of one process that runs a script.

    Args:
        record: that of the run.
        script: knows the calls of the script.
        is_first: returns whether this worker's files are real now.
    """

    def __init__(
        self, record: ScriptRecord, script: CallingScript, is_first: Callable[[], bool]
    ) -> None:
        self._record = record
        self._script = script
        self._is_first = is_first
        self._counts: Counter[str] = Counter()
        self._names: dict[str, str] = {}
        self._apart: dict[str, str] = {}
        """The key in the record of each that is this worker's own."""
        self._of_libraries: set[str] = set()
        """Those that no line of the script has made: the first worker's has another name."""
        self._to_remove: set[str] = set()

    def make(self, plain: Callable[..., str], *arguments: Any, **by: Any) -> str:
        """Stand for ``tempfile.mkdtemp``."""
        made = plain(*arguments, **by)
        line = self._script.line_behind(sys._getframe(1)) if self._script.is_here() else None
        if line is None:
            self._of_libraries.add(made)
            return made
        self._counts[line] += 1
        name = f"temporary directory {self._counts[line]} of {line}"
        # Another batch job may have another place for temporary files, and not this one.
        key = f"{name} in {os.path.dirname(made)}"
        if not self._is_first():
            self._names[made], self._apart[made] = name, key
            return made
        shared: str = self._record.first(key, made)
        if shared != made:
            os.rmdir(made)
            with contextlib.suppress(FileExistsError):
                _plain_mkdir(shared, 0o700)
        self._names[shared] = name
        return shared

    def lasting_name(self, path: str) -> str:
        """Return how later launches know a path; a temporary directory may lie elsewhere then."""
        own = self._holder(path)
        return path if own is None else self._names[own] + path.removeprefix(own)

    def place(self, path: str) -> str:
        """Return where a path lies on the first worker, whose callbacks have come as far."""
        own = self._holder(path)
        if own not in self._apart:
            return path
        return str(self._record.first(self._apart[own], own)) + path.removeprefix(own)

    def is_apart(self, path: str) -> bool:
        """Return whether a path is this worker's own, so that its files are real."""
        if self._is_first():
            return False
        is_of_library = _holder(path, self._of_libraries) is not None
        return is_of_library or self._holder(path) in self._apart

    def link(self, path: str) -> None:
        """Let a file that a hook writes be found on this worker too."""
        target = self.place(path)
        if target == path or self._is_first() or os.path.islink(path):
            return
        with contextlib.suppress(OSError):
            _make_parents(path)
            if os.path.lexists(path):
                _plain_unlink(path)
            os.symlink(target, path)

    def gather(self) -> None:
        """Let all that the first worker has, when a training has ended, be found here too."""
        if self._is_first():
            return
        for own, key in self._apart.items():
            shared = self._record.find(key)
            if shared is None or shared == own or not os.path.isdir(own):
                continue
            for folder, _, files in os.walk(shared):
                mine = Path(own + folder.removeprefix(shared))
                for file in files:
                    if not os.path.lexists(mine / file):
                        self.link(str(mine / file))

    def lead(self) -> None:
        """Become the first worker: what lies in the directory of the one before is real."""
        for own in self._apart:
            shared = self.place(own)
            if shared == own or os.path.islink(own) or not os.path.isdir(own):
                continue
            with contextlib.suppress(OSError):
                os.makedirs(shared, exist_ok=True)
                aside = tempfile.mkdtemp(dir=os.path.dirname(own))
                os.rename(own, os.path.join(aside, "own"))
                os.symlink(shared, own)
                self._to_remove.add(aside)

    def agreed(self) -> None:
        """Hear that the workers have agreed; nothing is to be done."""

    def take_back(self, path: str) -> bool:
        """Return whether the script removes one of these: it is done when nobody reads there."""
        if path not in self._names:
            return False
        if path in self._apart and not os.path.islink(path):
            _plain_rmtree(path, ignore_errors=True)
        else:
            self._to_remove.add(path)
        return True

    def remove(self) -> None:
        """Remove those that the script has given back, when all scripts have ended."""
        for path in self._to_remove:
            if os.path.islink(path):
                _plain_unlink(path)
            else:
                _plain_rmtree(path, ignore_errors=True)

    def _holder(self, path: str) -> str | None:
        """Return the directory of the script that a path is, or lies in."""
        return _holder(path, self._names)


def _holder(path: str, directories: Iterable[str]) -> str | None:
    found = (one for one in directories if path == one or path.startswith(f"{one}/"))
    return next(found, None)


def _make_parents(path: str) -> None:
    """Make the folders of a path, past what stands between hooks and the disk."""
    for parent in reversed(Path(path).parents):
        if not parent.exists():
            _plain_mkdir(parent)


_INDEX = ".index"
"""The end of the name of the file that TensorFlow writes last."""


def share_caches(tensorflow: Any, scratch: Callable[[], Path]) -> None:
    """Let each worker fill caches of its own in its private folder; a whole one is read."""
    plain, numbers = tensorflow.data.Dataset.cache, itertools.count(1)

    @functools.wraps(plain)
    def cache(dataset: Any, filename: Any = "", name: Any = None) -> Any:
        is_path = isinstance(filename, (str, bytes, os.PathLike)) and bool(filename)
        if is_path and not tensorflow.io.gfile.exists(os.fsdecode(filename) + _INDEX):
            filename = str(scratch() / f"cache-{next(numbers)}")
        return plain(dataset, filename, name)

    tensorflow.data.Dataset.cache = cache


def share_checkpoints(tensorflow: Any, writes: SharedWrites) -> None:
    """Let one worker write each checkpoint and SavedModel of TensorFlow's own."""
    checkpoint, management = tensorflow.train.Checkpoint, sys.modules[_MANAGEMENT]
    plain_write, plain_save = checkpoint._write, tensorflow.saved_model.save
    plain_note = management.update_checkpoint_state_internal

    def write(self: Any, file_prefix: Any, options: Any = None) -> Any:
        prefix = os.path.abspath(os.fsdecode(file_prefix))

        def rest() -> str:
            for hear in getattr(options, "experimental_write_callbacks", None) or ():
                hear(file_prefix)  # a manager counts its checkpoints
            return str(file_prefix)

        def whole() -> Any:
            return plain_write(self, file_prefix, options)

        return writes.once(f"{prefix}{_INDEX}", whole, rest)

    @functools.wraps(plain_save)
    def save(obj: Any, export_dir: Any, *more: Any, **by: Any) -> None:
        where = os.path.abspath(os.fsdecode(export_dir))
        writes.once(where, lambda: plain_save(obj, export_dir, *more, **by))

    @functools.wraps(plain_note)
    def note(save_dir: Any, *more: Any, **by: Any) -> None:
        where = os.path.abspath(os.path.join(os.fsdecode(save_dir), "checkpoint"))
        writes.once(where, lambda: plain_note(save_dir, *more, **by))

    checkpoint._write, tensorflow.saved_model.save = write, save
    management.update_checkpoint_state_internal = note  # type: ignore[attr-defined]


_MANAGEMENT = "tensorflow.python.checkpoint.checkpoint_management"

_Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"


class SharedDirectories:
    """The directories and files of one process that runs a script.

    Args:
        record: that of the run.
        script: knows the calls of the script.
        run_dir: the run directory; in it everything stays as it is.
        since: the time of day when the job began; older directories are not the job's.
        is_first: returns whether this worker's files are real now.
        step: names the launch and the step that it has come to.
    """

    def __init__(
        self,
        record: ScriptRecord,
        script: CallingScript,
        run_dir: Path,
        since: float,
        is_first: Callable[[], bool] = lambda: True,
        step: Callable[[], str] = str,
    ) -> None:
        self._record = record
        self._script = script
        self._run_dir = run_dir.resolve()
        self._since = since
        self._made_here: set[str] = set()
        self.temporary = TemporaryDirectories(record, script, is_first)
        self.writes = SharedWrites(record, lambda: f"{step()} {self._moment}")
        """What libraries write for the script, in C too."""
        self.before_removal: list[Callable[[str], None]] = []
        """Called with a path before the script removes it."""
        self.when_written: list[Callable[[str], None]] = []
        """Called with the path of a file that a hook writes."""
        self.logs: list[HeldLogs] = [self.temporary]
        """Logs that the script holds open."""
        self.training = 0
        """The number of the last training that the script has come to."""

    def share(self) -> None:
        """Exchange Python's functions; ``os.makedirs``, ``pathlib`` and others call these."""
        exchanged: dict[tuple[Any, str], Callable[..., Any]] = {
            (os, "mkdir"): self._mkdir,
            (os, "remove"): self._remove,
            (os, "unlink"): self._remove,
            (shutil, "rmtree"): self._remove,
            (tempfile, "mkdtemp"): self.temporary.make,
        }
        for (module, name), function in exchanged.items():
            exchange(module, name, functools.partial(function, getattr(module, name)))

    def wrote(self, path: str) -> None:
        """Hear that a hook has made a file for the run, or that the script has saved a model."""
        if not is_in_training():
            self._made_here.add(path)
        else:
            self.temporary.link(path)
        for hear in self.when_written:
            hear(path)
        self._record.reach(f"made {path}", self._moment)

    @property
    def _moment(self) -> float:
        """How far the script is: a whole number is behind a training, one between is in it."""
        return self.training - 0.5 * is_in_training()

    def _mkdir(
        self, plain: Callable[..., None], path: _Path, mode: int = 0o777, *, dir_fd: Any = None
    ) -> None:
        where = self._absolute(path)
        if dir_fd is not None or _is_called_by_tempfile() or self._is_ours(where):
            plain(path, mode, dir_fd=dir_fd)
            return
        with self._record.turn():
            try:
                plain(path, mode)
                self._record.reach(f"made {where}", self._moment)
            except FileExistsError:
                if not self._is_of_job(where):
                    raise
        self._made_here.add(where)

    def _remove(self, plain: Callable[..., None], path: Any, *arguments: Any, **by: Any) -> None:
        if not self._is_scripts(path, by):
            plain(path, *arguments, **by)
            return
        where = self._absolute(path)
        if self.temporary.take_back(where):
            return
        with self._record.turn():
            made = self._record.largest(f"made {where}")
            is_runs = made is not None and made >= self._moment and where not in self._made_here
            is_gone = not os.path.lexists(where) and self._record.find(f"removed {where}")
            if is_runs or is_gone:
                return
            self._tell_of_removal(where)
            self._record.first(f"removed {where}", 1)
            plain(path, *arguments, **by)

    def _is_scripts(self, path: Any, by: dict[str, Any]) -> bool:
        """Return whether the script itself removes something, by its name."""
        return (
            isinstance(path, (str, bytes, os.PathLike))
            and by.get("dir_fd") is None
            and self._script.is_here()
            and self._script.line_behind(sys._getframe(2)) is not None
            and not self._is_ours(self._absolute(path))
        )

    def _tell_of_removal(self, where: str) -> None:
        for hear in self.before_removal:
            hear(where)

    def _is_of_job(self, where: str) -> bool:
        """Return whether a worker's script has made the directory since the job began."""
        found = os.stat(where)
        return stat.S_ISDIR(found.st_mode) and found.st_ctime >= self._since

    def _is_ours(self, where: str) -> bool:
        resolved = Path(where).resolve()
        return self._run_dir in (resolved, *resolved.parents)

    @staticmethod
    def _absolute(path: Any) -> str:
        return os.path.abspath(os.fsdecode(path))


_shared: SharedDirectories | None = None


def share_directories(directories: SharedDirectories) -> None:
    """Let the script of this process make and remove through ``directories``."""
    global _shared  # noqa: PLW0603  (one process runs one script)
    _shared = directories
    directories.share()


def shared_directories() -> SharedDirectories | None:
    """Return those of this process, None without a job."""
    return _shared


def _is_called_by_tempfile() -> bool:
    return sys._getframe(2).f_globals.get("__name__") == "tempfile"
