"""What comes late, twice or from a care that was given up costs no save of a local directory."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from committing_report import Told
from host_saves import LAUNCH, Workers, plan_of, state_of
from local_saves import BOUND_S, Saves, sound_steps

from holdfast.checkpoint import repair
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Pruner
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.local_level import LocalLevel, LocalTerms


class Gate:
    """Holds the care's call of a function, as a disk that is slow does."""

    def __init__(self) -> None:
        self.came, self.goes_on = threading.Event(), threading.Event()

    def before(
        self, plain: Callable[..., Any], *, when: Callable[..., bool] = lambda *_: True
    ) -> Any:
        """Return ``plain`` such that the care's first call ``when`` this holds waits here."""

        def held(*arguments: Any) -> Any:
            is_care = threading.current_thread().name.startswith("holdfast-care")
            if is_care and when(*arguments) and not self.came.is_set():
                self.came.set()
                assert self.goes_on.wait(BOUND_S)
            return plain(*arguments)

        return held


def damage(directory: Path, step: int) -> None:
    shard = next((directory / "checkpoints" / f"step-{step:012d}").glob("*.h5"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def next_launch(saves: Saves, **changes: Any) -> Workers:
    """Begin the next launch, with the same directories; return its workers."""
    plan = saves.workers.plan
    after = LAUNCH + 1
    found = plan_of(plan.run_dir, local=plan.local, generation=after, **changes)
    saves.committer = Committer(found, saves.told)
    saves.rest()
    return Workers(found, launch=after)


def test_care_that_was_given_up_removes_no_save_of_the_next_launch(
    saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its marks the damaged steps are the newest two sound ones."""
    for step in (20, 30, 40):
        saves.commit(step)
        saves.rest()
    held, gate = saves.level._pruner, Gate()
    monkeypatch.setattr(
        Pruner, "prune", gate.before(Pruner.prune, when=lambda pruner, _: pruner is held)
    )
    old = saves.committer._care._thread.submit(saves.committer._care._tidy)
    assert gate.came.wait(BOUND_S)
    saves.committer.close(0.0)
    for step in (30, 40):
        damage(saves.local, step)
    workers = next_launch(saves, unsound=frozenset({30, 40}))
    for attempt, step in enumerate((24, 28)):
        saves.committer.commit(workers.held(step, attempt))
    saves.rest()

    gate.goes_on.set()
    old.exception(BOUND_S)

    assert saves.steps()[0] == (28, 24)
    workers.close()


def test_drain_that_was_given_up_moves_no_step_of_the_next_one_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Saves(tmp_path, every_saves=1)
    gate = Gate()
    monkeypatch.setattr(repair, "_replace", gate.before(repair._replace))
    saves.commit(10)
    assert gate.came.wait(BOUND_S)
    last = saves.committer._care._thread.submit(int)
    saves.committer.close(0.0)
    workers = next_launch(saves)
    assert saves.steps() == ((10,), (10,))

    gate.goes_on.set()
    last.result(BOUND_S)
    saves.committer.close(BOUND_S)

    assert saves.steps() == ((10,), (10,))
    assert saves.told.sentences == []
    workers.close()


def test_plan_that_was_made_before_a_save_removes_it_not(
    saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step 70 of the job before was to go, when this job saved it."""
    gate = Gate()
    saves.level.make_directory()
    for step in (70, 80):
        save(saves.level.store, state_of(step), header=Header("run", 1, step), writers=2)
    plain = Pruner._plan

    def planned(pruner: Pruner, *arguments: Any) -> Any:
        plan = plain(pruner, *arguments)
        if pruner is saves.level._pruner and plan.removed == (70,):
            gate.came.set()
            assert gate.goes_on.wait(BOUND_S)
        return plan

    monkeypatch.setattr(Pruner, "_plan", planned)
    saves.commit(90)
    assert gate.came.wait(BOUND_S)

    saves.commit(70)
    gate.goes_on.set()
    saves.rest()

    assert saves.steps()[0] == (90, 80, 70)


def test_note_that_comes_late_hides_no_later_save_of_its_step(
    saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = LocalFileSystem.create_exclusive

    def full(files: LocalFileSystem, path: Path) -> int:
        if "local" in path.parts:
            raise OSError(errno.ENOSPC, "it is full")
        return plain(files, path)

    busy = threading.Event()
    saves.committer._care._thread.submit(busy.wait, BOUND_S)
    with monkeypatch.context() as filled:
        filled.setattr(LocalFileSystem, "create_exclusive", full)
        saves.commit(10)
    monkeypatch.setattr("host_saves.state_of", lambda _: state_of(77))  # of other numerics
    saves.commit(10)
    busy.set()
    saves.rest()

    assert saves.steps()[0] == (10,)


def test_last_of_the_saves_during_a_drain_drains_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Saves(tmp_path, every_saves=1)
    gate = Gate()
    monkeypatch.setattr(LocalLevel, "drain", gate.before(LocalLevel.drain))
    saves.commit(10)
    assert gate.came.wait(BOUND_S)
    saves.commit(20)
    saves.commit(30)

    gate.goes_on.set()
    saves.rest()

    assert saves.steps() == ((30, 20), (30, 10))
    saves.close()


def test_older_step_of_the_job_before_drains_if_the_newest_is_damaged(saves: Saves) -> None:
    saves.commit(20)
    saves.commit(30)
    saves.rest()
    saves.committer.close(BOUND_S)
    damage(saves.local, 30)

    workers = next_launch(saves, unsound=frozenset({30}))

    assert saves.steps()[1] == (20,)
    assert len(saves.told.of("drain_failed")) == 1
    workers.close()


def test_damaged_step_of_the_run_directory_is_none_that_a_local_one_is_older_than(
    saves: Saves,
) -> None:
    saves.commit(40)
    saves.commit(50, goes_through=True)
    saves.rest()
    saves.committer.close(BOUND_S)
    damage(saves.local.parents[1] / "run", 50)

    workers = next_launch(saves, unsound=frozenset({50}))

    assert saves.steps()[1] == (40,)
    workers.close()


def test_lack_of_threads_in_a_drain_is_told_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Saves(tmp_path, every_saves=1)
    plain = repair._write

    def write(*arguments: Any) -> None:
        plain(*arguments)
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(repair, "_write", write)
    for step in (10, 20, 30):
        saves.commit(step)
    saves.rest()

    assert saves.steps() == ((30, 20), ())
    assert CheckpointStore(tmp_path / "run").names() == ()
    assert "can't start new thread" in saves.told.sentences[0]
    saves.close()


def test_drain_takes_no_other_state_of_its_step_for_its_own(tmp_path: Path) -> None:
    run = CheckpointStore(tmp_path / "run")
    save(run, state_of(99), header=Header("run", 1, 10), writers=2)
    workers, told = Workers(plan_of(tmp_path / "run", local=terms_of(tmp_path))), Told()
    committer = Committer(workers.plan, told)

    committer.commit(workers.held(10, 1))
    committer.close(BOUND_S)

    assert told.of("drained") == []
    assert "has another state" in told.sentences[0]
    workers.close()


def terms_of(base: Path) -> LocalTerms:
    return LocalTerms(base / "disk" / "local", every_saves=1)


def test_removal_of_the_run_directorys_steps_is_told_by_a_drain(tmp_path: Path) -> None:
    saves = Saves(tmp_path, every_saves=1)
    saves.commit(10)
    saves.rest()
    shutil.rmtree(tmp_path / "run" / "checkpoints")

    saves.commit(20)
    saves.rest()

    assert sound_steps(tmp_path / "run") == (20,)
    assert "it has no checkpoint before step 20" in saves.told.sentences[0]
    saves.close()
