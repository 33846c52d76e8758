"""Stores of experiments that the script has opened on a worker that is not the first.

Each worker runs the script, and so does each launch.  So a store may have an entry for each of
them.  holdfast cannot know which rows of a store belong together: it says so before a training,
and names the store.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from holdfast.runtime.worker.calling_script import CallingScript
from holdfast.runtime.worker.exchanged import exchange

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
        for store in [*written, *_open_runs()]:
            if store not in self._told:
                self._told.add(store)
                yield (
                    f"the script writes to {store} on each of the {workers} workers, and again in "
                    "each launch: let one do so, with `if holdfast.is_first():`, and give an "
                    "entry a key that the run keeps, as of uuid.uuid4()"
                )


def _open_runs() -> Iterator[str]:
    for name, ask in _OPEN_RUNS.items():
        module = sys.modules.get(name)
        if module is not None and ask(module) is not None:
            yield f"a run of {name}"


def _changed_at(path: str) -> int:
    """Return when a database was changed, 0 if it is not there."""
    files = [file for file in (path, f"{path}-wal", f"{path}-journal") if os.path.exists(file)]
    return max((os.stat(file).st_mtime_ns for file in files), default=0)


_stores: ScriptStores | None = None


def watch_stores(script: CallingScript) -> ScriptStores:
    """Take note of the stores of this process's script from now on."""
    global _stores  # noqa: PLW0603  (one process runs one script)
    _stores = ScriptStores(script)
    return _stores


def words_on_stores(workers: int) -> list[str]:
    """Return what is to say of stores before a training of this process."""
    return [] if _stores is None else list(_stores.new_words(workers))
