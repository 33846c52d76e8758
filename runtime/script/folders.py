"""Folders and files that all workers of a job, and all launches of a run, make and remove.

A script makes a folder for its results, and in plain Python it is the only one that does.  Here
every worker runs that line, and so does a script that begins again after a relaunch.  So:

* one that another worker or launch has made counts as made;
* a script that clears its results at its start must not remove those of the run.  What the run has
  made, and this process has not made again yet, is left.  What was there before the run is
  removed once;
* a temporary folder is one for all workers and launches, because a relaunch reads what an earlier
  launch has written.  It is removed when the scripts of all workers have ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.calls import CallingScript, is_in_training
from holdfast.runtime.script.overlay import own_work
from holdfast.runtime.script.writes import SharedWrites

_Path: TypeAlias = "str | bytes | os.PathLike[str] | os.PathLike[bytes]"


class SharedFolders:
    """The folders of one process that runs a script, and what it removes.

    Args:
        record: that of the run.
        script: knows the calls of the script.
        writes: those of the script.
        run_dir: the run directory; in it everything stays as it is.
        since: the time of day when the job began; older folders are not the job's.
    """

    def __init__(
        self,
        record: ScriptRecord,
        script: CallingScript,
        writes: SharedWrites,
        run_dir: Path,
        since: float,
    ) -> None:
        self._record = record
        self._script = script
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
        self, plain: Callable[..., None], path: _Path, mode: int = 0o777, *, dir_fd: Any = None
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
                if not self._is_of_job(where):
                    raise
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

    def _is_of_job(self, where: str) -> bool:
        """Return whether a worker's script has made the folder since the job began."""
        found = os.stat(where)
        return stat.S_ISDIR(found.st_mode) and found.st_ctime >= self._since

    def _is_ours(self, where: str) -> bool:
        resolved = Path(where).resolve()
        return self._run_dir in (resolved, *resolved.parents)


def _absolute(path: Any) -> str:
    return os.path.abspath(os.fsdecode(path))
