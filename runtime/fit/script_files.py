"""Logs that the script itself adds to, outside of trainings: an entry is there once for a run.

Every worker runs the line that adds an entry, and so does each launch.  So:

* what workers other than the first one append, or write to a file that they have read before,
  goes into their private folder, and they read it there;
* an entry that an earlier launch has appended is taken back when it is appended again;
* a file that an earlier launch has read and rewritten is read as it was before, if nobody has
  changed it since.

Only what the script's own lines ``open`` is seen.  A file that the script writes without having
read it is written by all workers alike.

A store of experiments, too, may have an entry for each worker and launch.  holdfast cannot know
which rows of a store belong together: it says so before a training, and names the store.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import hashlib
import io
import os
import shutil
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.callbacks.callback_files import PrivateFolder
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import CallingScript
from holdfast.runtime.worker.script_draws import exchange

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


_MOST_ENTRIES = 10_000
"""A script that appends more often writes no log of runs."""


class ScriptFiles:
    """The logs of one process that runs a script.

    Args:
        record: that of the run.
        script: knows the calls of the script.
        run_dir: the run directory, whose own files are left alone.
        is_first: returns whether this worker's files are real now.
        scratch: returns a private folder, which exists.
        kept: the folder for copies of files before they were rewritten.
    """

    def __init__(
        self,
        record: ScriptRecord,
        script: CallingScript,
        run_dir: Path,
        is_first: Callable[[], bool],
        scratch: Callable[[], Path],
        kept: Path,
    ) -> None:
        self._record = record
        self._script = script
        self._run_dir = run_dir.resolve()
        self._is_first = is_first
        self._scratch = scratch
        self._kept = kept
        self._launch = f"{os.getpid()}-{os.urandom(4).hex()}"
        self._read: set[str] = set()
        self._rewritten: Counter[str] = Counter()
        self._entries: Counter[str] = Counter()
        self._private: dict[str, Path] = {}
        self._held: list[_Held] = []
        self.is_apart: Callable[[str], bool] = lambda path: False
        """Returns whether a path is in a directory that no other worker knows."""

    def share(self) -> None:
        """Exchange ``open``, also for ``pathlib``."""
        modules: tuple[Any, ...] = (builtins, io)
        for module in modules:
            exchange(module, "open", functools.partial(self._open, module.open))

    def forget(self, path: str) -> None:
        """Hear that a hook writes a file: what this worker has of it is not the newest."""
        self._private.pop(path, None)

    def lead(self) -> None:
        """Become the first worker: a log that the script holds open goes on in the real file."""
        for held in self._held:
            with contextlib.suppress(OSError):
                held.make_real()
        self._held.clear()

    def agreed(self) -> None:
        """Hear that the first worker has written what hooks have written so far."""
        self._held = [held for held in self._held if held.measure()]

    def _open(
        self, plain: Callable[..., Any], file: Any, mode: str = "r", *more: Any, **by: Any
    ) -> Any:
        if not self._is_log(file, by):
            return plain(file, mode, *more, **by)
        where = os.path.abspath(os.fsdecode(file))
        if not set(mode) & set("wax+"):
            found = self._to_read(where)
            return plain(file if found == where else found, mode, *more, **by)
        adds = mode in ("a", "at", "ab")
        if not adds and not (where in self._read and mode in ("w", "wt", "wb")):
            return plain(file, mode, *more, **by)
        if not self._is_first():
            private = plain(self._place(where, copies=adds), mode, *more, **by)
            if adds:
                place = self._private[where]
                size = place.stat().st_size
                self._held.append(_Held(weakref.ref(private), where, place, size))
            return private
        self._private.pop(where, None)
        begin = os.path.getsize(where) if adds and os.path.exists(where) else 0
        if adds:
            self._record.first(f"begin {where}", begin)
        else:
            self._keep(where)
        then = self._appended if adds else self._has_rewritten
        return _opened(_Told(where, mode[0], lambda: then(where, begin)), mode, *more, **by)

    def _is_log(self, file: Any, by: dict[str, Any]) -> bool:
        """Return whether the script itself opens a plain file of its own, by its name."""
        if not isinstance(file, (str, bytes, os.PathLike)) or by.get("opener") is not None:
            return False
        if not self._script.is_here() or self._script.line_behind(sys._getframe(2)) is None:
            return False
        where = Path(os.path.abspath(os.fsdecode(file)))
        if self.is_apart(str(where)) or (where.exists() and not where.is_file()):
            return False
        return self._run_dir not in where.resolve().parents

    def _to_read(self, where: str) -> str:
        """Return what the script is to read in the place of a file."""
        self._read.add(where)
        if where in self._private:
            return str(self._private[where])
        if self._rewritten[where] or self._record.find(f"rewritten {where} 1") is None:
            return where
        before = self._copy_of(where)
        is_ours = not self._is_first() or self._record.find(f"left {where} {_digest(where)}")
        return str(before) if is_ours and before.exists() else where

    def _place(self, where: str, *, copies: bool) -> Path:
        """Return where this worker writes a file that is another one's."""
        if where not in self._private:
            place = self._scratch() / f"script-{len(self._private)}-{os.path.basename(where)}"
            if copies and os.path.isfile(where):
                shutil.copyfile(where, place)
                begin = self._record.find(f"begin {where}")
                if begin is not None:  # behind it stands what the first worker has appended
                    os.truncate(place, min(begin, os.path.getsize(place)))
            self._private[where] = place
        return self._private[where]

    def _keep(self, where: str) -> None:
        """Keep a file as it was when the run came to it, before it is rewritten."""
        copy = self._copy_of(where)
        if not copy.exists() and os.path.isfile(where):
            copy.parent.mkdir(exist_ok=True)
            beside = copy.with_name(f".{copy.name}.{self._launch}")
            shutil.copyfile(where, beside)
            os.replace(beside, copy)
        self._record.first(f"rewritten {where} 1", self._launch)

    def _has_rewritten(self, where: str, _: int) -> None:
        self._rewritten[where] += 1
        with contextlib.suppress(OSError):
            self._record.first(f"left {where} {_digest(where)}", 1)

    def _appended(self, where: str, begin: int) -> None:
        """Take an entry back that an earlier launch of the run has appended."""
        with contextlib.suppress(OSError), self._record.turn(), io.FileIO(where, "r+") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(begin)
            entry = file.read(size - begin)
            name = f"appended {where} {hashlib.sha256(entry).hexdigest()[:16]}"
            self._entries[name] += 1
            if not entry or self._entries.total() > _MOST_ENTRIES:
                return
            if self._record.first(f"{name} {self._entries[name]}", self._launch) != self._launch:
                file.truncate(begin)

    def _copy_of(self, where: str) -> Path:
        name = hashlib.sha256(where.encode()).hexdigest()[:8]
        return self._kept / f"before-{name}-{os.path.basename(where)}"


class _Told(io.FileIO):
    """A file that tells when it was closed."""

    def __init__(self, path: str, mode: str, then: Callable[[], None]) -> None:
        super().__init__(path, mode)
        self._then = then

    def close(self) -> None:
        was_open = not self.closed
        super().close()
        if was_open:
            self._then()


def _opened(
    raw: _Told,
    mode: str,
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    closefd: bool = True,  # noqa: FBT001, FBT002  (as ``open`` has it)
) -> Any:
    """Return what ``open`` makes of a file that is open to be written."""
    del closefd
    if "b" in mode and buffering == 0:
        return raw
    buffer = io.BufferedWriter(raw, buffering if buffering > 1 else io.DEFAULT_BUFFER_SIZE)
    if "b" in mode:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=buffering == 1)
    text.mode = mode  # type: ignore[misc]
    return text


@dataclass(slots=True)
class _Held:
    """A log that the script of a worker holds open, while the first worker's is the real one."""

    file: Callable[[], Any]
    path: str
    private: Path
    agreed: int
    """Bytes of the private file that the first worker has written, too."""

    def measure(self) -> bool:
        """Take what stands in the file for agreed; return whether the file is still open."""
        file = self.file()
        if file is None or file.closed:
            return False
        file.flush()
        self.agreed = self.private.stat().st_size
        return True

    def make_real(self) -> None:
        """Append what is not agreed to the real file, and let the open file go on there."""
        file = self.file()
        if file is None or file.closed:
            return
        file.flush()
        real = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(real, self.private.read_bytes()[self.agreed :])
            os.dup2(real, file.fileno(), inheritable=False)
        finally:
            os.close(real)


def _digest(path: str) -> str:
    with io.FileIO(path) as file:
        return hashlib.sha256(file.readall()).hexdigest()[:16]


def is_first() -> bool:
    """Return whether this worker's files are real now."""
    from holdfast.runtime.training import stages  # it loads NumPy, and not each script does

    return stages.is_first()


def scratch() -> Path:
    """Return this process's private folder, which exists."""
    return private_folder()()


@functools.cache
def private_folder() -> PrivateFolder:
    """Return this process's private folder, which is removed when the script has ended."""
    from holdfast.runtime.training.stages import stages_of_script

    stages = stages_of_script()
    context = stages.context
    folder = PrivateFolder(context.run_dir, context.config.worker)
    folder.clear(context.config.workers)
    context.at_end.append(lambda: folder.clear(stages.world.workers))
    return folder
