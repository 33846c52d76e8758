"""A worker may die at every call of a mend: the next launch restores the newest step."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from committing_report import Told
from host_saves import plan_of
from mirrored_run import flip_a_byte, mirrored_run, shard, there
from resumed_run import Run

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.repair import MendResult
from holdfast.checkpoint.retention import Retention
from holdfast.runtime.saving.checkpoint_care import CheckpointCare
from holdfast.runtime.saving.mending import Mirror


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return mirrored_run(tmp_path, monkeypatch)


class _Died(BaseException):
    """The process is no more."""


CHANGES = ("mkdir", "create_exclusive", "write", "fsync", "fsync_directory", "rename_noreplace")
CHANGES += ("unlink", "rmdir")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("damaged", ["here", "both"])
def test_death_of_the_mender_at_every_call_leaves_nothing_that_is_mistaken(
    run: Run, monkeypatch: pytest.MonkeyPatch, ranks: int, damaged: str
) -> None:
    """Whenever rank 0 dies, the next launch restores the newest step."""
    flip_a_byte(run.store, shard(1), 5000)
    if damaged == "both":
        flip_a_byte(there(run), shard(2), 5000)
    pristine = run.directory.with_name("pristine")
    shutil.copytree(run.directory / "checkpoints", pristine)
    moments = 0
    while True:
        moments += 1
        with monkeypatch.context() as patch:
            has_died = _die_at(moments, patch)
            first = run.restore(ranks)
        if not has_died:
            break
        assert first == [None] * ranks
        is_moved = ".bad-000000000020-g1-a1" in run.store.names()
        for step in run.store.steps() if is_moved else (10,):
            restore(run.store, step)
        assert run.restore(ranks) == [(20, 2.0)] * ranks, f"died at change {moments}"
        _care_for(run)
        assert not [name for name in run.store.names() if name.startswith(".tmp-")]
        shutil.rmtree(run.directory / "checkpoints")
        shutil.copytree(pristine, run.directory / "checkpoints")
    assert first == [(20, 2.0)] * ranks
    assert moments > 10


def _care_for(run: Run) -> None:
    """Let the next launch remove what the dead one has left."""
    plan = plan_of(run.directory, generation=2, retention=Retention(2))
    CheckpointCare(plan, Told()).close(60.0)


def _die_at(moment: int, patch: pytest.MonkeyPatch) -> list[int]:
    """Let the process that mends die before its n-th change; then the list is not empty."""
    calls: list[str] = []
    has_died: list[int] = []

    def dying(name: str) -> Callable[..., object]:
        plain = getattr(LocalFileSystem, name)

        def call(*arguments: object) -> object:
            if threading.current_thread().name != "holdfast-mirror":
                return plain(*arguments)
            calls.append(name)
            if len(calls) >= moment:
                has_died.append(moment)
                raise _Died
            return plain(*arguments)

        return call

    for name in CHANGES:
        patch.setattr(LocalFileSystem, name, dying(name))
    mend = Mirror.mend

    def mend_or_die(mirror: Mirror, step: int) -> MendResult:
        try:
            return mend(mirror, step)
        except _Died:
            Run.die()
            raise

    patch.setattr(Mirror, "mend", mend_or_die)
    return has_died
