"""A commit is durable or has left nothing; a full disk gets room, and a slow one is told of."""

from __future__ import annotations

import copy
import errno
import functools
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from committing_report import StrikeResult
from fake_filesystem import FakeFileSystem, Survival
from host_saves import LAUNCH, RUN, STEP, Workers, plan_of, saved_steps, state_of, verify
from host_writer import RunningWriter

from holdfast.checkpoint import disk as disk_module
from holdfast.checkpoint.errors import CheckpointError, CommitRefused, StorageFailed
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.record import ShardRecord
from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore, Staging
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving import committer as committer_module
from holdfast.runtime.saving import writer as writer_module
from holdfast.runtime.saving.committer import Committer, HeldSave
from holdfast.runtime.saving.maintenance import CheckpointMaintenance
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.writer import WriterReport
from holdfast.runtime.system.channel import pair

BOUND_S = 60.0
OLD, NEW = 10, 20
OLD_NAME, NEW_NAME = "step-000000000010", "step-000000000020"
Way = Callable[[Committer, Workers, int], int]
ROOM_BYTES = 150_000
"""For three steps."""


def from_memory(committer: Committer, workers: Workers, attempt: int) -> int:
    return committer.commit(workers.held(NEW, attempt))


def from_the_state(committer: Committer, workers: Workers, attempt: int) -> int:
    ticket = workers.ticket(NEW, attempt)
    return committer.commit_state(ticket, {"epoch": NEW}, state_of(NEW))


class _NoCare:
    """The care of old steps, where a test counts calls."""

    def __init__(self, *arguments: Any, is_idle: bool) -> None:
        self.steps: list[int] = []

    def committed(self, step: int) -> None:
        self.steps.append(step)

    def close(self, within_s: float) -> None: ...


@pytest.fixture
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the calls of a commit come in the same order each time."""
    monkeypatch.setattr(committer_module, "CheckpointMaintenance", _NoCare)
    monkeypatch.setattr(committer_module, "MOST_THREADS", 1)
    monkeypatch.setattr(disk_module, "_BATCH_BYTES", 8192)


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(plan_of(tmp_path))
    yield workers
    workers.close()


@functools.cache
def _saved_once(run_dir: Path) -> FakeFileSystem:
    """Return a file system on which the old step was saved by a launch before."""
    files = FakeFileSystem(run_dir)
    with pytest.MonkeyPatch.context() as patch:
        workers = Workers(plan_of(run_dir))
        commit_on(files, patch).commit(workers.held(OLD, 7))
        workers.close()
    return files


def commit_on(files: FakeFileSystem, patch: pytest.MonkeyPatch) -> Committer:
    """Return the committer of a process that finds these files."""
    patch.setattr(
        SavePlan, "open_store", lambda plan, _files=None: CheckpointStore(plan.run_dir, files)
    )
    patch.setattr(committer_module, "CheckpointMaintenance", _NoCare)
    return Committer(plan_of(files.root), StrikeResult())


def failure_of(commit: Callable[[], int]) -> CheckpointError | None:
    try:
        commit()
    except CheckpointError as error:
        return error
    return None


def newest(files: FakeFileSystem, run_dir: Path) -> int:
    store = CheckpointStore(run_dir, files)
    restored, _ = restore_newest(store)  # a name may survive a cut after a failed sync
    assert restored is not None
    verify(store, restored.manifest.step)
    return restored.manifest.step


@pytest.mark.usefixtures("in_order")
@pytest.mark.parametrize("way", [from_memory, from_the_state])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_failure_of_any_call_leaves_nothing_and_the_next_commit_succeeds(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way, number: int
) -> None:
    files = copy.deepcopy(_saved_once(tmp_path))
    begin = len(files.calls)
    way(commit_on(files, monkeypatch), workers, 1)
    calls = range(begin, len(files.calls))
    assert len(calls) > 20
    failures = 0

    for call in calls:
        files = copy.deepcopy(_saved_once(tmp_path))
        files.fail_at(call, number)
        committer = commit_on(files, monkeypatch)
        failure = failure_of(functools.partial(way, committer, workers, 1))
        if failure is not None:
            failures += 1
            assert errno.errorcode[number] in str(failure)
            assert CheckpointStore(tmp_path, files).names() == (OLD_NAME,), files.calls[call]
        after = files.after_power_cut(Survival.ANYTHING, seed=call)
        expected = OLD if failure else NEW
        assert newest(files, tmp_path) == expected, files.calls[call]
        # A rename that was taken back after a failed sync may be there again after a power cut.
        # The step is whole then, though nobody was told so.
        assert newest(after, tmp_path) in {expected, NEW}, files.calls[call]
        way(committer, workers, 2)
        assert newest(files, tmp_path) == NEW, files.calls[call]
    assert failures > len(calls) / 2


@pytest.mark.parametrize("way", [from_memory, from_the_state])
def test_commit_is_told_with_its_bytes(workers: Workers, tmp_path: Path, way: Way) -> None:
    told = StrikeResult()
    committer = Committer(workers.plan, told)

    nbytes = way(committer, workers, 1)

    (record,) = told.of("checkpoint")
    assert (record["step"], record["generation"], record["bytes"]) == (NEW, LAUNCH, nbytes)
    assert nbytes == sum(p.stat().st_size for p in tmp_path.glob("checkpoints/step-*/*.h5"))
    assert max(told.being_written) <= nbytes
    assert told.being_written.count(0) > 2, "it ends with each file"
    assert told.being_written[-1] == 0
    assert saved_steps(tmp_path) == (NEW,)
    committer.close(BOUND_S)


def test_state_that_is_saved_twice_is_written_once(workers: Workers, tmp_path: Path) -> None:
    """Survivors of a death cannot know whether their save was complete."""
    told = StrikeResult()
    committer = Committer(workers.plan, told)
    first = committer.commit(workers.held(NEW, 1))
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("step-*/*")}
    changes = len(told.being_written)

    again = workers.held(NEW, 2)
    assert committer.commit(again) == first

    assert again.is_durable
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("step-*/*")} == files
    assert len(told.being_written) <= changes + 2, "no more than its manifest is read"
    assert len(told.of("checkpoint")) == 1
    shutil.rmtree(tmp_path / "checkpoints" / NEW_NAME)
    committer.commit(workers.held(NEW, 3))
    assert saved_steps(tmp_path) == (NEW,), "it is written again if it is gone"
    committer.close(BOUND_S)


def test_first_failure_waits_for_the_writes_of_the_other_shards(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one of them would make its file in a directory that was removed, or cannot be."""
    plain = Staging.write_image
    first_has_failed = threading.Event()

    def write(staging: Staging, image: memoryview, record: ShardRecord, writers: int) -> None:
        if record.index == 0:
            first_has_failed.set()
            raise StorageFailed("write", staging.path, OSError(errno.EIO, "bad block"))
        first_has_failed.wait(BOUND_S)
        plain(staging, image, record, writers)

    monkeypatch.setattr(Staging, "write_image", write)
    committer = Committer(workers.plan, StrikeResult())

    with pytest.raises(StorageFailed, match="bad block"):
        committer.commit(workers.held())

    assert CheckpointStore(tmp_path).names() == ()
    committer.close(BOUND_S)


@pytest.mark.parametrize("way", [from_memory, from_the_state])
def test_shards_of_a_save_are_synced_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: Way
) -> None:
    """A sync may take half a minute on a parallel file system: none waits for another one."""
    workers = Workers(plan_of(tmp_path, shards=4))
    all_sync = threading.Barrier(4, timeout=10)
    plain = LocalFileSystem.fsync

    def fsync(files: LocalFileSystem, handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().suffix == ".h5":
            all_sync.wait()
        plain(files, handle)

    monkeypatch.setattr(LocalFileSystem, "fsync", fsync)
    committer = Committer(workers.plan, StrikeResult())

    try:
        way(committer, workers, 1)
    except threading.BrokenBarrierError:
        pytest.fail("a shard is synced after another one")

    assert saved_steps(tmp_path) == (NEW,)
    committer.close(BOUND_S)
    workers.close()


def test_run_directory_that_another_run_has_taken_is_left_alone(
    workers: Workers, tmp_path: Path, another_run: Callable[[Path], None]
) -> None:
    committer = Committer(workers.plan, StrikeResult())
    another_run(tmp_path)
    save = workers.held()

    with pytest.raises(CommitRefused, match="belongs to run other now"):
        committer.commit(save)

    assert (save.is_durable, CheckpointStore(tmp_path).names()) == (False, ())
    committer.close(BOUND_S)


class Hanging:
    """A call that does not return before the test lets it."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.has_begun = threading.Event()
        self.goes_on = threading.Event()
        plain = getattr(owner, name)

        def call(*arguments: Any) -> Any:
            self.has_begun.set()
            self.goes_on.wait(BOUND_S)
            return plain(*arguments)

        patch.setattr(owner, name, call)


def test_saves_are_answered_while_the_pruning_hangs_and_pruned_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = Hanging(monkeypatch, Pruner, "prune")
    workers, writer = Workers(plan_of(tmp_path, retention=Retention(2))), RunningWriter()
    writer.use(workers)

    answers = [writer.save(workers, 10 * attempt, attempt) for attempt in (1, 2, 3, 4)]

    assert {answer["kind"] for answer in answers} == {"saved"}
    assert hanging.has_begun.wait(BOUND_S)
    assert saved_steps(tmp_path) == (40, 30, 20, 10)
    hanging.goes_on.set()
    writer.close()
    assert saved_steps(tmp_path) == (40, 30)
    workers.close()


def test_writer_ends_within_its_bound_while_the_care_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "_CARE_ENDS_WITHIN_S", 0.01)
    hanging = Hanging(monkeypatch, Pruner, "prune")
    workers, writer = Workers(plan_of(tmp_path)), RunningWriter()
    writer.use(workers)
    writer.save(workers, 10, 1)
    assert hanging.has_begun.wait(BOUND_S)

    writer.close()

    assert not hanging.goes_on.is_set()
    hanging.goes_on.set()
    workers.close()


def test_plan_of_the_next_stage_waits_for_no_care_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writer: RunningWriter
) -> None:
    hanging = Hanging(monkeypatch, Pruner, "prune")
    workers, other = Workers(plan_of(tmp_path)), Workers(plan_of(tmp_path, shards=3))
    writer.use(workers)
    writer.save(workers, 10, 1)
    assert hanging.has_begun.wait(BOUND_S)

    writer.use(other)

    assert writer.save(other, 20, 2)["kind"] == "saved"
    hanging.goes_on.set()
    workers.close()
    other.close()


def begin_run(directory: Path, run_id: str) -> None:
    directory.mkdir()
    record = RunRecord(run_id, FORMAT, 1.5, microbatches=4, seed=0, threads=1)
    RunDirectory(directory).create_record(record)


@pytest.fixture
def saved_once(tmp_path: Path) -> Iterator[tuple[Committer, HeldSave]]:
    """Return a committer that has saved a step in ``run``, and the next save of that step."""
    begin_run(tmp_path / "run", RUN)
    plan = plan_of(tmp_path / "run")
    workers, committer = Workers(plan), Committer(plan, StrikeResult())
    committer.commit(workers.held(STEP, 1))
    yield committer, workers.held(STEP, 2)
    committer.close(1.0)
    workers.close()


def test_step_in_the_directory_of_another_run_is_no_answer(
    saved_once: tuple[Committer, HeldSave], tmp_path: Path
) -> None:
    committer, again = saved_once
    run = (tmp_path / "run").rename(tmp_path / "moved").with_name("run")
    begin_run(run, "other")
    shutil.copytree(tmp_path / "moved" / "checkpoints", run / "checkpoints")

    with pytest.raises(CommitRefused, match="belongs to run other"):
        committer.commit(again)

    assert not again.is_durable


def test_step_whose_files_are_gone_is_written_again(
    saved_once: tuple[Committer, HeldSave], tmp_path: Path
) -> None:
    committer, again = saved_once
    (shard, *_) = (tmp_path / "run" / "checkpoints").glob("step-*/shard-*")
    os.unlink(shard)

    committer.commit(again)

    CheckpointStore(tmp_path / "run").scan(STEP).verify()


class FullDisk:
    """A disk that takes nothing as long as it holds more than ``most`` steps."""

    def __init__(self, run_dir: Path, most: int, patch: pytest.MonkeyPatch) -> None:
        self._store = run_dir / "checkpoints"
        self._most = most
        plain = LocalFileSystem.allocate

        def allocate(files: LocalFileSystem, handle: int, size_bytes: int) -> None:
            if len(list(self._store.glob("step-*"))) > self._most:
                raise OSError(errno.ENOSPC, "No space left on device")
            plain(files, handle, size_bytes)

        patch.setattr(LocalFileSystem, "allocate", allocate)


def filled(workers: Workers, steps: int, told: StrikeResult) -> Committer:
    """Commit so many steps, none of which has to go by the rule of retention."""
    committer = Committer(workers.plan, told)
    for number in range(1, steps + 1):
        committer.commit(workers.held(number))
    return committer


def test_oldest_steps_make_room_for_a_new_one(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = StrikeResult()
    committer = filled(workers, 5, told)
    FullDisk(tmp_path, most=4, patch=monkeypatch)

    committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[0] == 6
    assert set(store.steps()) == {2, 3, 4, 5, 6}, "no more than needed goes"
    assert all(verify_step(store, step).is_valid for step in store.steps())
    assert any("the disk is full" in str(record["reason"]) for record in told.of("prune_failed"))


def test_disk_that_has_no_room_for_a_third_step_fails_the_save(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = filled(workers, 5, StrikeResult())
    FullDisk(tmp_path, most=1, patch=monkeypatch)

    with pytest.raises(StorageFailed, match="No space left"):
        committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[:2] == (5, 4)
    assert all(verify_step(store, step).is_valid for step in (5, 4))
    assert [name for name in store.names() if name.startswith(".tmp")] == []


def test_many_reads_are_told_once_a_second_and_each_file_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = pair()
    now = [100.0]
    monkeypatch.setattr(writer_module.time, "monotonic", lambda: now[0])
    report = WriterReport(theirs)

    for change in (0, 0, 7, 0, 9, -7, 0):
        report.disk_moved(change)
    now[0] += 1.0
    report.disk_moved(0)
    report.disk_moved(0)
    theirs.send({"kind": "end"})

    found = []
    while (message := ours.receive()) is not None and message["kind"] == "progress":
        found.append(message["bytes"])
    ours.close()
    theirs.close()
    assert found == [0, 7, 16, 9, 9]


def test_room_that_is_made_tells_of_its_reads(tmp_path: Path) -> None:
    """Nothing goes before a newer step was read back, at a bounded rate."""
    workers, told = Workers(plan_of(tmp_path)), StrikeResult()
    committer = Committer(workers.plan, StrikeResult())
    for number in range(1, 6):
        nbytes = committer.commit(workers.held(number))
    committer.close(BOUND_S)
    maintenance = CheckpointMaintenance(workers.plan, told)

    maintenance.make_room(nbytes, StagingName(6, 7, 1))

    maintenance.close(BOUND_S)
    workers.close()
    assert len(told.being_written) > 5
