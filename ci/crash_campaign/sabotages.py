"""The guards of the product, each of which can be removed: a campaign that misses one is no proof.

Each entry says which victim notices.  What is replaced is named where the product uses it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint import repair, retention, scan, store
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Manifest, ShardRecord
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.retention import ReadMarks
from holdfast.recovery.saves import PartHeld, SaveCoordinator, SaveNews, SaveOrder
from holdfast.runtime.run import files as files_module
from holdfast.runtime.run import journal, run_directory
from holdfast.runtime.run.lease import LeaseFile
from holdfast.runtime.run.run_directory import Ownership, RunDirectory, RunRecord
from holdfast.runtime.training import consistency


@dataclass(frozen=True, slots=True)
class Sabotage:
    """How a guard is removed, and the part and the victim that notice it."""

    remove: Callable[[], None]
    part: str
    victim: str


class _BlindDigest:
    """A digest that agrees with every other one."""

    def update(self, data: object) -> None:
        """Take nothing in."""

    def hexdigest(self) -> _BlindDigest:
        """Return this object, which is equal to every other one."""
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _with(owner: Any, name: str, value: object) -> Callable[[], None]:
    """Return what puts a value in a guard's place."""
    return lambda: setattr(owner, name, value)


def _without(owner: Any, name: str) -> Callable[[], None]:
    """Return what makes a guard do nothing."""
    return _with(owner, name, lambda *_, **__: None)


def _hide_errors() -> None:
    commit = store.Staging.commit

    def silent(staging: store.Staging, manifest: Manifest) -> Path:
        with contextlib.suppress(CheckpointError):
            return commit(staging, manifest)
        return staging.path

    store.Staging.commit = silent  # type: ignore[assignment,method-assign]


def _replace_what_is_there() -> None:
    plain = FileSystem.rename_noreplace

    def rename(files: FileSystem, source: Path, target: Path) -> None:
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
        plain(files, source, target)

    FileSystem.rename_noreplace = rename  # type: ignore[assignment,method-assign]


def _write_unsynced(path: Path, content: bytes, *, is_durable: bool) -> None:
    assert is_durable
    files_module.write_whole(path, content)


def _write_in_place(directory: RunDirectory, record: RunRecord) -> None:
    directory.record_path.write_bytes(record.encode())
    files_module.sync(directory.record_path)
    files_module.sync(directory.path)


def _remove_in_place() -> None:
    def remove(disk: Disk, directory: Path, _hidden_name: str) -> None:
        disk.remove_tree(directory)

    for module in (store, retention):
        _with(module, "hide", remove)()


def _believe(marks: ReadMarks, step: int) -> None:
    marks.whole.add(step)


def _only_in_place(found: store.CheckpointStore, step: int) -> tuple[Path, ...]:
    return (found.directory / step_name(step),)


def _let_pass(files: FileSystem, root: Path | None = None, _fence: object = None) -> None:
    files._root = root
    files._fence = lambda: None


def _see_one_state() -> None:
    take = SaveCoordinator.take

    def blind(saves: SaveCoordinator, news: SaveNews) -> list[SaveOrder]:
        if isinstance(news, PartHeld):
            news = dataclasses.replace(news, digests=frozenset(("00",)))
        return take(saves, news)

    SaveCoordinator.take = blind  # type: ignore[assignment,method-assign]


SABOTAGES: dict[str, Sabotage] = {
    # what is read back
    "no-digests": Sabotage(_with(scan, "Digest", _BlindDigest), "damage", "steps"),
    "no-read-back": Sabotage(_with(ReadMarks, "verify", _believe), "calls", "care"),
    # what is in memory
    "no-image-check": Sabotage(_without(ShardRecord, "check"), "calls", "commit"),
    "no-state-comparison": Sabotage(_see_one_state, "calls", "commit"),
    # what is durable
    "no-fsync": Sabotage(_without(FileSystem, "fsync"), "power", "save"),
    "no-fsync-of-shares": Sabotage(_without(FileSystem, "fsync"), "power", "share"),
    "no-directory-fsync": Sabotage(_without(FileSystem, "fsync_directory"), "power", "save"),
    "no-record-fsync": Sabotage(
        _with(run_directory, "write_whole", _write_unsynced), "power", "begin"
    ),
    "no-record-directory-fsync": Sabotage(_without(files_module, "sync_names"), "power", "begin"),
    # what is put in place, and taken away
    "no-errors": Sabotage(_hide_errors, "calls", "save"),
    "no-noreplace": Sabotage(_replace_what_is_there, "calls", "again"),
    "no-hiding": Sabotage(_remove_in_place, "calls", "save"),
    "no-files-aside": Sabotage(_with(repair, "directories_of", _only_in_place), "calls", "repair"),
    "no-whole-record": Sabotage(
        _with(RunDirectory, "create_record", _write_in_place), "calls", "begin"
    ),
    # whose it is
    "no-ownership": Sabotage(_without(Ownership, "prove"), "calls", "rivals"),
    "no-token": Sabotage(_with(RunDirectory, "lease_token", lambda _: ""), "calls", "rivals"),
    "no-fence": Sabotage(_with(FileSystem, "__init__", _let_pass), "calls", "rivals"),
    "no-lock": Sabotage(_with(LeaseFile, "_lock", lambda *_: True), "calls", "begin"),
    # what a run is told by
    "no-identity": Sabotage(_without(consistency, "check_same_job"), "damage", "run"),
    "no-saved-generations": Sabotage(_with(journal, "_saved", lambda _: ()), "damage", "run"),
    "no-torn-lines": Sabotage(
        _with(journal, "_ends_with_newline", lambda _: True), "calls", "resume"
    ),
}
