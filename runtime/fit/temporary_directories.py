"""Temporary directories that the script makes: that of the first worker is the run's.

The first worker has the same one in all launches, because a relaunch reads what an earlier launch
has written.  Each other worker has one of its own, as in plain Python: what all of them write at
the same time, as an array that each reads back, must not lie in one file.

What callbacks write is there once, in that of the first worker.  The others find it in their own as
links: at once for a file that a hook writes, and for all that is there when a training has ended.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.calling_script import CallingScript

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
        self._to_remove: set[str] = set()

    def make(self, plain: Callable[..., str], *arguments: Any, **by: Any) -> str:
        """Stand for ``tempfile.mkdtemp``."""
        made = plain(*arguments, **by)
        line = self._script.line_behind(sys._getframe(1)) if self._script.is_here() else None
        if line is None:
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
        return self._holder(path) in self._apart and not self._is_first()

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
        """Return the directory that a path is, or lies in."""
        found = (own for own in self._names if path == own or path.startswith(f"{own}/"))
        return next(found, None)


def _make_parents(path: str) -> None:
    """Make the folders of a path, past what stands between hooks and the disk."""
    for parent in reversed(Path(path).parents):
        if not parent.exists():
            _plain_mkdir(parent)
