"""Saves go to a local directory first; some of them drain, and a restore reads it as it is."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from committing_report import StrikeResult
from host_saves import LAUNCH, Workers, local_of, plan_of, state_of
from host_saves import RUN as HOST_RUN
from local_saves import BOUND_S, Saves, sound_steps
from resumed_run import Run

from holdfast.checkpoint import repair
from holdfast.checkpoint.errors import CheckpointError, SnapshotDamaged, StorageFailed
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.retention import Pruner
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.recovery.schedule import EverySeconds, EverySteps
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.run.find_run import claim
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.local_level import LocalLevel

RUN = "a" * 16


class Level:
    """A local level, the run's store, and steps that are saved to the local one."""

    def __init__(self, base: Path, drain_every: EverySteps | EverySeconds) -> None:
        self.run = CheckpointStore(base / "run")
        directory = base / "local" / RUN
        directory.mkdir(parents=True)
        self.level = LocalLevel(directory, drain_every, self.run, RUN)

    def save(self, step: int, now: float = 0.0) -> None:
        state = {"a": np.full(5000, step)}
        with self.level.taking(step):
            save(self.level.store, state, header=Header(RUN, 1, step), writers=2)
        self.level.committed(step, now)


def test_every_third_save_drains(tmp_path: Path) -> None:
    found = Level(tmp_path, EverySteps(3))
    due = []
    for step in range(1, 8):
        found.save(step)
        if found.level.is_due(0.0):
            due.append(step)
            found.level.drain(step, 0.0)

    assert due == [3, 6]
    assert found.run.steps() == (6, 3)
    assert [verify_step(found.run, step).reason for step in (3, 6)] == [None, None]


def test_save_drains_when_its_time_has_come(tmp_path: Path) -> None:
    found = Level(tmp_path, EverySeconds(60.0))
    found.save(1, now=100.0)
    assert not found.level.is_due(159.0)
    assert found.level.is_due(160.0)
    found.level.drain(1, 160.0)
    assert not found.level.is_due(1000.0), "nothing was saved since"
    found.save(2, now=200.0)

    assert [found.level.is_due(now) for now in (219.0, 220.0)] == [False, True]


def test_step_that_the_job_before_has_left_drains_at_once(tmp_path: Path) -> None:
    """Its job has resumed from there, and the host may be gone at any time."""
    before = Level(tmp_path, EverySteps(3))
    before.save(1)

    found = LocalLevel(before.level.store.directory.parent, EverySteps(3), before.run, RUN)

    assert found.is_due(0.0)
    found.drain(1, 0.0)
    assert before.run.steps() == (1,)
    again = LocalLevel(before.level.store.directory.parent, EverySteps(3), before.run, RUN)
    assert not again.is_due(0.0), "the run directory has it"


def test_step_that_has_drained_is_not_written_again(tmp_path: Path) -> None:
    found = Level(tmp_path, EverySteps(1))
    found.save(4)
    found.level.drain(4, 0.0)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}

    found.level.drain(4, 1.0)

    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")} == before


def test_damaged_local_step_never_reaches_the_run_directory(tmp_path: Path) -> None:
    found = Level(tmp_path, EverySteps(1))
    found.save(4)
    shard = next((found.level.store.directory / "step-000000000004").glob("shard-00001*"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 4
    shard.write_bytes(content)

    with pytest.raises(CheckpointError):
        found.level.drain(4, 0.0)

    assert found.run.names() == ()
    assert found.level.is_due(0.0), "the next save tries again"


def test_two_newest_steps_stay_in_the_local_directory(tmp_path: Path) -> None:
    found = Level(tmp_path, EverySteps(100))
    for step in (1, 2, 3, 4):
        found.save(step)

    assert found.level.prune(0.0, 1) == ()
    assert found.level.store.steps() == (4, 3)


def test_save_that_has_failed_keeps_no_older_step_of_its_number(tmp_path: Path) -> None:
    found = Level(tmp_path, EverySteps(100))
    for step in (1, 2, 3, 4):
        found.save(step)
    with pytest.raises(StorageFailed), found.level.taking(1):
        raise StorageFailed("write", tmp_path, OSError(errno.EIO, "it is refused"))

    assert found.level.prune(0.0, 1) == ()
    assert found.level.store.steps() == (4, 3)


def refuse_local(patch: pytest.MonkeyPatch, number: int) -> None:
    """Let each new file of a local directory fail with this error."""
    plain = LocalFileSystem.create_exclusive

    def create_exclusive(files: LocalFileSystem, path: Path) -> int:
        if "local" in path.parts:
            raise OSError(number, "it is refused")
        return plain(files, path)

    patch.setattr(LocalFileSystem, "create_exclusive", create_exclusive)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EIO, errno.EACCES])
def test_run_directory_takes_what_the_local_one_refuses(
    saves: Saves, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    saves.commit(10)
    with monkeypatch.context() as refusing:
        refuse_local(refusing, number)
        saves.commit(20)
        saves.commit(30)
    saves.commit(40)

    assert saves.steps() == ((40, 10), (30, 20))
    assert len(saves.told.of("local_failed")) == 2
    assert len(saves.told.of("checkpoint")) == 4
    assert [text.split(":")[0] for text in saves.told.sentences] == [
        "the local directory has not taken the checkpoint of step 20, and saves go to the run "
        "directory until it does",
        "the local directory takes saves again, from step 40 on",
    ]


def test_disk_that_comes_back_with_later_steps_costs_none_of_this_job(saves: Saves) -> None:
    """It was not mounted when the job began, which therefore trains them again."""
    for step in (80, 90):
        saves.commit(step)
    hidden = saves.local.with_name("hidden")
    saves.local.rename(hidden)
    saves.local.write_text("not mounted")
    saves.restart()
    saves.commit(10)
    saves.local.unlink()
    hidden.rename(saves.local)

    for step in (20, 30, 40):
        saves.commit(step)
    saves.rest()

    assert saves.steps() == ((90, 80, 40, 30), (10,))
    assert saves.level.newest() == 40, "that is what drains"


def test_save_that_is_just_there_stays_beside_later_steps(
    saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old steps may be looked at before the care knows of the save."""
    for step in (80, 90, 10, 20):
        saves.commit(step)
    saves.rest()
    plain = saves.told.record

    def record(event: str, /, **fields: object) -> None:
        plain(event, **fields)
        saves.tidy()

    monkeypatch.setattr(saves.told, "record", record)
    saves.commit(30)
    saves.rest()

    assert saves.steps() == ((90, 80, 30, 20), ())


def test_local_disk_that_is_unmounted_is_told_of(saves: Saves) -> None:
    saves.commit(10)
    saves.local.rename(saves.local.with_name("hidden"))

    saves.commit(20)

    assert "it has no checkpoint before step 20" in saves.told.sentences[0]
    assert saves.steps() == ((20,), ())


def test_step_that_the_local_directory_has_and_cannot_read_goes_to_the_run_directory(
    saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves.commit(10)
    saves.restart()

    def read(files: LocalFileSystem, handle: int, *_: object) -> int:
        if "/local/" in os.readlink(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EIO, "Input/output error")
        return plain(files, handle, *_)  # type: ignore[arg-type]

    plain = LocalFileSystem.read
    monkeypatch.setattr(LocalFileSystem, "read", read)
    saves.commit(10)
    saves.commit(10, needs_run_directory=True)
    monkeypatch.undo()

    assert saves.steps()[1] == (10,)
    assert len(saves.told.of("local_failed")) == 1


def test_damaged_memory_is_no_failure_of_the_local_directory(saves: Saves) -> None:
    save = saves.workers.held(10, 1)
    saves.workers.flip_a_bit(1)

    with pytest.raises(SnapshotDamaged):
        saves.committer.commit(save)

    assert saves.told.of("local_failed") == []
    assert saves.steps() == ((), ())


def test_local_directory_that_is_a_file_fails_no_save(saves: Saves) -> None:
    saves.local.parent.mkdir()
    saves.local.write_text("mine")

    saves.commit(10)
    saves.commit(20, needs_run_directory=True)

    assert sound_steps(saves.local.parents[1] / "run") == (20, 10)
    assert saves.local.read_text() == "mine"


def test_last_save_needs_nothing_of_the_local_directory(saves: Saves) -> None:
    """It is in memory still."""
    saves.commit(10)
    for path in saves.local.rglob("*.h5"):
        path.write_bytes(bytes(path.stat().st_size))

    saves.commit(10, needs_run_directory=True)

    assert saves.steps() == ((), (10,))


def test_save_that_goes_through_calls_nothing_of_the_local_directory(
    saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hang, and a user or the end of the job waits."""
    asked: list[int] = []
    level = saves.committer._maintenance.local
    monkeypatch.setattr(level, "make_directory", lambda: asked.append(1))
    monkeypatch.setattr(level.store, "staging", lambda *_: asked.append(2))  # type: ignore[union-attr]

    saves.commit(10, needs_run_directory=True)

    assert asked == []
    assert saves.steps() == ((), (10,))


def test_step_of_another_state_gives_way_in_the_local_directory(saves: Saves) -> None:
    """A disk comes back with what a job of other numerics has saved."""
    saves.local.mkdir(parents=True)
    header = Header(saves.workers.plan.run_id, 1, 10)
    save(CheckpointStore(saves.local), state_of(99), header=header, writers=2)

    saves.commit(10)

    found = restore(CheckpointStore(saves.local), 10).state
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in state_of(10).items()
    }
    assert saves.told.of("storage_downgrade") == []


def test_save_in_the_run_directory_hides_an_older_state_of_its_step(saves: Saves) -> None:
    """A restore would take the step of the local directory."""
    saves.local.mkdir(parents=True)
    header = Header(saves.workers.plan.run_id, 1, 10)
    save(CheckpointStore(saves.local), state_of(99), header=header, writers=2)

    saves.commit(10, needs_run_directory=True)
    saves.rest()

    assert saves.steps() == ((), (10,))


def test_local_directory_of_a_copy_takes_no_save(saves: Saves, tmp_path: Path) -> None:
    record = RunRecord(saves.workers.plan.run_id, FORMAT, 0.0, microbatches=4, seed=0, threads=1)
    for place in (tmp_path / "run", tmp_path / "copy"):
        place.mkdir(exist_ok=True)
        RunDirectory(place).create_record(record)
    saves.local.mkdir(parents=True)
    claim(saves.local, tmp_path / "copy")

    saves.commit(10)

    assert saves.steps() == ((), (10,))
    (failed,) = saves.told.of("local_failed")
    assert f"holds the checkpoints of {tmp_path / 'copy'}" in failed["reason"]


def test_last_save_is_taken_note_of_where_the_local_directory_has_it(saves: Saves) -> None:
    saves.commit(10)
    saves.commit(10, needs_run_directory=True)
    saves.rest()

    assert saves.steps() == ((10,), (10,))
    assert (saves.level.drained_step, saves.level.newest()) == (10, 10)


def test_step_that_both_places_have_is_written_no_more(saves: Saves) -> None:
    saves.commit(10, needs_run_directory=True)
    run = saves.local.parents[1] / "run"
    before = {path: path.stat().st_ino for path in run.rglob("*")}

    saves.commit(10, needs_run_directory=True)

    assert {path: path.stat().st_ino for path in run.rglob("*")} == before
    assert len(saves.told.of("checkpoint")) == 1


def test_state_that_is_written_without_a_copy_goes_around_a_full_local_disk(
    saves: Saves, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_local(monkeypatch, errno.ENOSPC)

    saves.committer.commit_state(saves.workers.ticket(20, 1), {"epoch": 1}, state_of(20))

    assert saves.steps() == ((), (20,))


def test_staging_of_a_dead_launch_goes_from_the_local_directory(saves: Saves) -> None:
    saves.commit(10)
    store = CheckpointStore(saves.local)
    assert store.staging(11, 1, 1).open()

    saves.commit(20)
    saves.close()

    assert store.names() == ("step-000000000010", "step-000000000020")


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
    """Flip a bit in the last shard of a step."""
    shard = max((directory / "checkpoints" / step_name(step)).glob("*.h5"))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def next_launch(saves: Saves, **changes: Any) -> Workers:
    """Begin the next launch, with the same directories; return its workers."""
    plan = saves.workers.plan
    after = LAUNCH + 1
    found = plan_of(plan.run_dir, **local_of(saves.local, 1000), generation=after, **changes)
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
        Pruner, "prune", gate.before(Pruner.prune, when=lambda pruner: pruner is held)
    )
    old = saves.committer._maintenance._thread.submit(saves.committer._maintenance._tidy)
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
    last = saves.committer._maintenance._thread.submit(int)
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
    saves.committer._maintenance._thread.submit(busy.wait, BOUND_S)
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
    saves.commit(50, needs_run_directory=True)
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
    workers, told = Workers(plan_of(tmp_path / "run", **drained(tmp_path))), StrikeResult()
    committer = Committer(workers.plan, told)

    committer.commit(workers.held(10, 1))
    committer.close(BOUND_S)

    assert told.of("drained") == []
    assert "has another state" in told.sentences[0]
    workers.close()


def drained(base: Path) -> dict[str, Any]:
    return local_of(base / "local" / f"holdfast-{HOST_RUN}", 1)


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


@pytest.fixture
def local_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run with step 10 in its directory, and step 20 on a disk of the host."""
    found = Run(tmp_path / "run")
    found.local_dir = tmp_path / "local"
    monkeypatch.setattr(
        "holdfast.runtime.training.restoring._numerics_of", lambda _: found.numerics
    )
    found.save(10, 1.0, writers=2)
    move_to_local(found, 20, 2.0)
    return found


def local_store(local_run: Run) -> CheckpointStore:
    assert local_run.local_dir is not None
    return CheckpointStore(local_run.local_dir / "holdfast-run")


def move_to_local(local_run: Run, step: int, fill: float) -> None:
    local = local_store(local_run).directory
    local.mkdir(parents=True, exist_ok=True)
    local_run.save(step, fill, writers=2).rename(local / step_name(step))


@pytest.mark.parametrize("ranks", [1, 3])
def test_newer_local_step_is_read_where_it_is(local_run: Run, ranks: int) -> None:
    assert local_run.restore(ranks) == [(20, 2.0)] * ranks

    assert local_run.store.steps() == (10,), "nobody has waited for a copy"
    assert local_run.journal("mended") == []
    assert [record["on_disk"] for record in local_run.journal("restored")] == [True]
    assert local_run.places == [(20, 20)] * ranks, "it is saved, but only on the host's disk"


def test_step_of_both_places_that_is_damaged_on_the_host_comes_from_the_run_directory(
    local_run: Run,
) -> None:
    local_run.save(20, 2.0, writers=2)
    damage(local_store(local_run).directory.parent, 20)

    assert local_run.restore(2) == [(20, 2.0)] * 2

    assert local_run.places == [(20, None)] * 2
    (rejected,) = local_run.journal("rejected")
    assert rejected["place"] == str(local_store(local_run).directory.parent)
    assert local_run.contexts[0].rejected == set(), "that of the run directory is sound"
    assert HistoryReader(local_run.directory / "journal.jsonl").read().rejected == ()


def test_step_that_only_the_host_has_and_that_is_damaged_sends_all_to_the_older_one(
    local_run: Run,
) -> None:
    damage(local_store(local_run).directory.parent, 20)

    assert local_run.restore(2) == [(10, 1.0)] * 2
    assert local_run.places == [(10, None)] * 2


def test_damage_in_both_places_is_mended_from_both(local_run: Run) -> None:
    local_run.save(20, 2.0, writers=2)
    damage(local_store(local_run).directory.parent, 20)
    first = sorted((local_run.store.directory / step_name(20)).glob("*.h5"))[0]
    first.write_bytes(first.read_bytes()[:-9000])

    assert local_run.restore(2) == [(20, 2.0)] * 2
    assert local_run.places == [(20, None)] * 2
    assert len(local_run.journal("mended")) == 1


def test_host_without_the_local_directory_goes_on_from_the_run_directory(
    local_run: Run,
) -> None:
    local_run.local_dir = local_run.directory.parent / "another host"

    assert local_run.restore(2) == [(10, 1.0)] * 2


def test_local_directory_that_cannot_be_read_costs_a_line(local_run: Run) -> None:
    store = local_store(local_run).directory
    store.rename(store.with_name("aside"))
    store.write_bytes(b"no directory")

    assert local_run.restore(2) == [(10, 1.0)] * 2
    (failed,) = local_run.journal("mend_failed")
    assert failed["holder"] == str(store.parent)
