"""A worker's private folder in the run directory, for files that are not real."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Collection
from pathlib import Path

_NAME = ".private"


class PrivateFolder:
    """The private folder of one worker; it exists once it is asked for.

    A worker that was killed leaves its folder behind.  The workers of the next launch remove it,
    and those of the next job have its name.
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

    def begin(self, living: Collection[int]) -> None:
        """Remove what dead workers have left: those of this name, and all that are not living."""
        self.remove()
        self.remove_dead(living)

    def remove(self) -> None:
        """Remove the folder with all that is in it."""
        shutil.rmtree(self._own, ignore_errors=True)
        self._remove_if_last()

    def remove_dead(self, living: Collection[int]) -> None:
        """Remove the folders of all workers but these."""
        names = {str(worker) for worker in living}
        with contextlib.suppress(OSError):
            for folder in self._all.iterdir():
                if folder.name not in names:
                    shutil.rmtree(folder, ignore_errors=True)
        self._remove_if_last()

    def _remove_if_last(self) -> None:
        with contextlib.suppress(OSError):  # it is not there, or others are in it
            self._all.rmdir()
