"""Directories and files that all workers of a job, and all launches of a run, make and remove.

A script makes a directory for its results, and in plain Python it is the only one that does.  Here
every worker runs that line, and so does a script that begins again after a relaunch.  So:

* one that another worker or launch has made counts as made;
* a script that clears its results at its start must not remove those of the run.  What the run has
  made, and this process has not made again yet, is left.  What was there before the run is
  removed once.
* what is temporary has rules of its own (`temporary_directories`).
"""

from __future__ import annotations

import functools
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.runtime.callbacks.first_files import HeldLogs
from holdfast.runtime.fit.temporary_directories import TemporaryDirectories
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.calling_script import CallingScript, is_in_training
from holdfast.runtime.worker.exchanged import exchange

_Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"


class SharedDirectories:
    """The directories and files of one process that runs a script.

    Args:
        record: that of the run.
        script: knows the calls of the script.
        run_dir: the run directory; in it everything stays as it is.
        since: the time of day when the job began; older directories are not the job's.
        is_first: returns whether this worker's files are real now.
    """

    def __init__(
        self,
        record: ScriptRecord,
        script: CallingScript,
        run_dir: Path,
        since: float,
        is_first: Callable[[], bool] = lambda: True,
    ) -> None:
        self._record = record
        self._script = script
        self._run_dir = run_dir.resolve()
        self._since = since
        self._made_here: set[str] = set()
        self.temporary = TemporaryDirectories(record, script, is_first)
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
