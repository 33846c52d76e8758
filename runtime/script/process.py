"""All that one process has of the script that it runs: its files, folders, stores and values.

A store of experiments may have an entry for each worker and launch.  holdfast cannot know which
rows of a store belong together: it says so before a training, and names the store.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.calls import CallingScript, exchange, share_names, share_values
from holdfast.runtime.script.overlay import Overlay, act_by
from holdfast.runtime.script.writes import ScriptFiles, SharedFolders, SharedWrites

_OPEN_RUNS: dict[str, Callable[[Any], Any]] = {
    "mlflow": lambda module: module.active_run(),
    "wandb": lambda module: module.run,
}
"""How to ask a library for the run that it has open in this process."""


class ScriptStores:
    """The stores that the script of this process has opened outside of trainings."""

    def __init__(self, script: CallingScript) -> None:
        self._script = script
        self._databases: dict[str, int] = {}
        self._told: set[str] = set()

    def share(self, module: Any) -> None:
        """Take note of each database file that ``sqlite3`` opens, also for a library."""
        for place in (module, module.dbapi2):
            exchange(place, "connect", functools.partial(self._connect, place.connect))

    def _connect(self, plain: Callable[..., Any], database: Any, *more: Any, **by: Any) -> Any:
        if self._script.is_here() and isinstance(database, (str, bytes, os.PathLike)):
            path = os.fsdecode(database)
            if path and path != ":memory:" and not path.startswith("file:"):
                self._databases.setdefault(os.path.abspath(path), _changed_at(path))
        return plain(database, *more, **by)

    def new_words(self, workers: int) -> Iterator[str]:
        """Say a line for each store that the script has opened, and not been told of."""
        written = [path for path, then in self._databases.items() if _changed_at(path) != then]
        runs = [
            f"a run of {name}"
            for name, ask in _OPEN_RUNS.items()
            if name in sys.modules and ask(sys.modules[name]) is not None
        ]
        for store in [*written, *runs]:
            if store not in self._told:
                self._told.add(store)
                yield (
                    f"the script writes to {store} on each of the {workers} workers, and again in "
                    "each launch: let one do so, with `if holdfast.is_first():`, and give an "
                    "entry a key that the run keeps, as of uuid.uuid4()"
                )


def _changed_at(path: str) -> int:
    """Return when a database was changed, 0 if it is not there."""
    files = [file for file in (path, f"{path}-wal", f"{path}-journal") if os.path.exists(file)]
    return max((os.stat(file).st_mtime_ns for file in files), default=0)


class ScriptProcess:
    """The script of one process.

    Args:
        script: its path.
        record: that of the run.
        run_dir: the run directory, in which everything stays as it is.
        scratch: returns a private folder, which exists.
        since: the time of day when the job began; older folders are not the job's.
        step: names the launch and the step that it has come to.
    """

    def __init__(
        self,
        script: Path,
        record: ScriptRecord,
        run_dir: Path,
        scratch: Callable[[], Path],
        since: float = 0.0,
        step: Callable[[], str] = str,
    ) -> None:
        self._record = record
        self.calls = CallingScript(script)
        self.writes = SharedWrites(record, self.calls, step)
        self.files = ScriptFiles(self.writes, run_dir, scratch)
        self.folders = SharedFolders(self.writes, run_dir, since)
        self.stores = ScriptStores(self.calls)
        self.scratch = scratch
        self.folders.before_removal.append(self.files.forget)

    def share(self) -> None:
        """Let Python's functions be those of the script from now on."""
        share_names(self._record, self.calls)
        share_values(self._record, self.calls)
        act_by(self.files.rules | self.folders.rules)

    def begin_training(
        self, number: int, tell: Callable[[str], None], *, is_first: bool
    ) -> Overlay:
        """Return what stands between the hooks of the next training and the disk."""
        self.calls.training = number
        held = self.files.begin_training()
        return Overlay(is_first, self.scratch, tell, self.wrote, held)

    def wrote(self, path: str) -> None:
        """Hear that a hook has made a file for the run, or that the script has saved a model."""
        self.files.forget(path)
        self.folders.wrote(path)


_process: ScriptProcess | None = None


def run_script_in(process: ScriptProcess) -> None:
    """Let this process be that of ``process`` from now on."""
    global _process  # noqa: PLW0603  (one process runs one script)
    _process = process
    process.share()


def script_process() -> ScriptProcess:
    """Return that of this process; a worker has it before its script imports Keras."""
    assert _process is not None, "no script runs in this process"
    return _process
