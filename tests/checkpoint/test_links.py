"""Symbolic links below the run directory are never followed, even if they appear during a call."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.known_steps import OwnSteps
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Retention, prune
from holdfast.checkpoint.store import CheckpointStore, save

STATE = {"a": np.arange(5000.0)}


def calls_below(stop: int) -> list[object]:
    """Return the numbers of the calls; a unit test takes only a few."""
    rest = pytest.mark.long
    return [pytest.param(call, marks=() if call % 6 == 1 else rest) for call in range(1, stop)]


class Swapping(LocalFileSystem):
    """A file system on which an attacker swaps a directory for a link before the n-th call."""

    def __init__(self, root: Path, victim: Path, elsewhere: Path, call: int) -> None:
        super().__init__(root)
        self._victim, self._elsewhere = victim, elsewhere
        self._calls_left = call

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("_"):
            self._count()
        return super().__getattribute__(name)

    def _count(self) -> None:
        self._calls_left -= 1
        if self._calls_left <= 0 and self._victim.is_dir() and not self._victim.is_symlink():
            self._victim.rename(self._victim.with_name("aside"))
            self._victim.symlink_to(self._elsewhere)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def save_steps(run_dir: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(run_dir)
    for step in steps:
        save(store, STATE, header=Header("run", 1, step), writers=2)
    return store


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return another user's directory, which looks like a place for checkpoints."""
    store = save_steps(tmp_path / "other", 10, 20)
    return store.directory


def test_step_that_became_a_link_is_refused(tmp_path: Path, elsewhere: Path) -> None:
    store = save_steps(tmp_path / "run", 10)
    (store.directory / "step-000000000020").symlink_to(elsewhere / "step-000000000020")

    with pytest.raises(CheckpointInvalid, match="ENOTDIR"):
        restore(store, 20)


def test_run_directory_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "scratch")

    restored, _ = restore_newest(save_steps(tmp_path / "run", 10))

    assert restored is not None
    assert (tmp_path / "scratch" / "checkpoints").is_dir()


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step-000000000020"])
@pytest.mark.parametrize("call", calls_below(24))
def test_directory_swapped_while_restoring_leads_nowhere(
    tmp_path: Path, elsewhere: Path, name: str, call: int
) -> None:
    """The bytes of elsewhere would verify, so only the way to them can be refused."""
    run_dir = tmp_path / "run"
    save_steps(run_dir, 10, 20)
    target = elsewhere if name == "checkpoints" else elsewhere / "step-000000000020"
    files = Swapping(run_dir, run_dir / name, target, call)
    opened = recording(files)

    with contextlib.suppress(CheckpointError):
        restore_newest(CheckpointStore(run_dir, files))

    for handle in opened:
        assert Path(os.readlink(f"/proc/self/fd/{handle}")).is_relative_to(run_dir)
        os.close(handle)


def recording(files: LocalFileSystem) -> list[int]:
    """Return duplicates of all descriptors that will be read from, in a list that fills."""
    found: list[int] = []
    opening: Callable[[Path], int] = type(files).__mro__[1].open_read.__get__(files)

    def open_read(path: Path) -> int:
        handle = opening(path)
        found.append(os.dup(handle))
        return handle

    files.open_read = open_read  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    "name", ["checkpoints", "checkpoints/.tmp-000000000030-g1-a1", "checkpoints/step-000000000010"]
)
@pytest.mark.parametrize("call", calls_below(60))
def test_directory_swapped_while_saving_and_pruning_touches_nothing_elsewhere(
    tmp_path: Path, elsewhere: Path, name: str, call: int
) -> None:
    run_dir = tmp_path / "run"
    save_steps(run_dir, 10, 20)
    before = contents(elsewhere)
    target = elsewhere if name == "checkpoints" else elsewhere / "step-000000000010"
    store = CheckpointStore(run_dir, Swapping(run_dir, run_dir / name, target, call))

    with contextlib.suppress(CheckpointError):
        save(store, STATE, header=Header("run", 1, 30), writers=2)
        prune(OwnSteps(store), Retention(2))

    assert contents(elsewhere) == before
