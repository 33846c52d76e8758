"""A commit is durable or has left nothing; a full disk gets room, and a slow one is told of."""

from __future__ import annotations

import copy
import errno
import functools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from committing_report import StrikeResult
from fake_filesystem import FakeFileSystem, Survival
from host_saves import LAUNCH, STEP, Workers, begin_run, plan_of, saved_steps, state_of, verify
from host_writer import RunningWriter

from holdfast.checkpoint.errors import CheckpointError, CommitRefused, StorageFailed
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import CheckpointMaintenance, Committer
from holdfast.runtime.saving.save_messages import DiskMoved
from holdfast.runtime.saving.writer import WriterReport
from holdfast.runtime.system.channel import MessageKinds, pair

BOUND_S = 60.0
OLD, NEW = 10, 20
OLD_NAME, NEW_NAME = "step-000000000010", "step-000000000020"
Way = Callable[[Committer, Workers, int], int]


def from_memory(committer: Committer, workers: Workers, attempt: int) -> int:
    return committer.commit(workers.held(NEW, attempt))


def from_the_state(committer: Committer, workers: Workers, attempt: int) -> int:
    ticket = workers.ticket(NEW, attempt)
    return committer.commit_state(ticket, {"epoch": NEW}, state_of(NEW))


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(plan_of(tmp_path))
    yield workers
    workers.close()


@functools.cache
def _saved_once(run_dir: Path) -> FakeFileSystem:
    """Return a file system on which the old step was saved by a launch before."""
    files = FakeFileSystem(run_dir)
    workers = Workers(plan_of(run_dir))
    commit_on(files).commit(workers.held(OLD, 7))
    workers.close()
    return files


def commit_on(files: FakeFileSystem) -> Committer:
    """Return the committer of a process that finds these files; its calls come in one order."""
    plan = plan_of(files.root)
    return Committer(plan, StrikeResult(), has_maintenance=False, files=files, most_threads=1)


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


@pytest.mark.parametrize("way", [from_memory, from_the_state])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_failure_of_any_call_leaves_nothing_and_the_next_commit_succeeds(
    workers: Workers, tmp_path: Path, way: Way, number: int
) -> None:
    files = copy.deepcopy(_saved_once(tmp_path))
    begin = len(files.calls)
    way(commit_on(files), workers, 1)
    calls = range(begin, len(files.calls))
    assert len(calls) > 20
    failures = 0

    for call in calls:
        files = copy.deepcopy(_saved_once(tmp_path))
        files.fail_at(call, number)
        committer = commit_on(files)
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
    (shard, *_) = tmp_path.glob("checkpoints/step-*/shard-*")
    for remove in (shard.unlink, functools.partial(shutil.rmtree, tmp_path / "checkpoints")):
        remove()
        committer.commit(workers.held(NEW, 3))
        assert saved_steps(tmp_path) == (NEW,), "it is written again if it is gone"
    committer.close(BOUND_S)


class OneFails(FileSystem):
    """The file of the first shard fails; that of the second is not made before."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._has_failed = threading.Event()

    def create_exclusive(self, path: Path) -> int:
        if path.name.startswith("shard-00000"):
            self._has_failed.set()
            raise OSError(errno.EIO, "bad block")
        self._has_failed.wait(BOUND_S)
        return super().create_exclusive(path)


def test_first_failure_waits_for_the_writes_of_the_other_shards(
    workers: Workers, tmp_path: Path
) -> None:
    """Else one of them would make its file in a directory that was removed, or cannot be."""
    committer = Committer(workers.plan, StrikeResult(), files=OneFails(tmp_path))

    with pytest.raises(StorageFailed, match="bad block"):
        committer.commit(workers.held())

    assert CheckpointStore(tmp_path).names() == ()
    committer.close(BOUND_S)


class SyncedAtOnce(FileSystem):
    """Each of four shards waits in its sync for all of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._all_sync = threading.Barrier(4, timeout=10)

    def fsync(self, handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().suffix == ".h5":
            self._all_sync.wait()
        super().fsync(handle)


@pytest.mark.parametrize("way", [from_memory, from_the_state])
def test_shards_of_a_save_are_synced_at_once(tmp_path: Path, way: Way) -> None:
    """A sync may take half a minute on a parallel file system: none waits for another one."""
    workers = Workers(plan_of(tmp_path, shards=4))
    committer = Committer(workers.plan, StrikeResult(), files=SyncedAtOnce(tmp_path))

    try:
        way(committer, workers, 1)
    except threading.BrokenBarrierError:
        pytest.fail("a shard is synced after another one")

    assert saved_steps(tmp_path) == (NEW,)
    committer.close(BOUND_S)
    workers.close()


class HangingCare(FileSystem):
    """Whoever looks for old steps hangs before the test says so."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.has_begun, self.goes_on = threading.Event(), threading.Event()

    def list(self, path: Path) -> tuple[str, ...]:
        if threading.current_thread().name.startswith("holdfast-care"):
            self.has_begun.set()
            self.goes_on.wait(BOUND_S)
        return super().list(path)


def test_saves_are_answered_while_the_pruning_hangs_and_pruned_after_it(tmp_path: Path) -> None:
    files = HangingCare(tmp_path)
    workers, writer = Workers(plan_of(tmp_path, retention=Retention(2))), RunningWriter(files)
    writer.use(workers)

    answers = [writer.save(workers, 10 * attempt, attempt) for attempt in (1, 2, 3, 4)]

    assert all(answer.is_durable for answer in answers)
    assert files.has_begun.wait(BOUND_S)
    assert saved_steps(tmp_path) == (40, 30, 20, 10)
    files.goes_on.set()
    writer.close()
    assert saved_steps(tmp_path) == (40, 30)
    workers.close()


def test_plan_of_the_next_stage_waits_for_no_care_of_the_one_before(tmp_path: Path) -> None:
    files = HangingCare(tmp_path)
    workers, other = Workers(plan_of(tmp_path)), Workers(plan_of(tmp_path, shards=3))
    writer = RunningWriter(files)
    writer.use(workers)
    writer.save(workers, 10, 1)
    assert files.has_begun.wait(BOUND_S)

    writer.use(other)

    assert writer.save(other, 20, 2).is_durable
    files.goes_on.set()
    writer.close()
    workers.close()
    other.close()


def test_step_in_the_directory_of_another_run_is_no_answer(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run")
    workers, committer = Workers(plan), Committer(plan, StrikeResult())
    committer.commit(workers.held(STEP, 1))
    again = workers.held(STEP, 2)
    run = (tmp_path / "run").rename(tmp_path / "moved").with_name("run")
    begin_run(run, "other")
    shutil.copytree(tmp_path / "moved" / "checkpoints", run / "checkpoints")

    with pytest.raises(CommitRefused, match="belongs to run other"):
        committer.commit(again)

    assert not again.is_durable
    committer.close(1.0)
    workers.close()


class FullDisk(FileSystem):
    """A disk that takes nothing as long as it holds more than ``most`` steps."""

    most = 100

    def allocate(self, handle: int, size_bytes: int) -> None:
        if sum(name.startswith("step-") for name in self.list(self.store)) > self.most:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().allocate(handle, size_bytes)

    def __init__(self, run_dir: Path) -> None:
        super().__init__(run_dir)
        self.store = run_dir / "checkpoints"


def filled(workers: Workers, told: StrikeResult, files: FullDisk) -> Committer:
    """Commit five steps, none of which has to go by the rule of retention."""
    committer = Committer(workers.plan, told, files=files)
    for number in range(1, 6):
        committer.commit(workers.held(number))
    return committer


def test_oldest_steps_make_room_for_a_new_one(workers: Workers, tmp_path: Path) -> None:
    told, disk = StrikeResult(), FullDisk(tmp_path)
    committer = filled(workers, told, disk)
    disk.most = 4

    committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[0] == 6
    assert set(store.steps()) == {2, 3, 4, 5, 6}, "no more than needed goes"
    assert all(verify_step(store, step).is_valid for step in store.steps())
    assert any("the disk is full" in str(record["reason"]) for record in told.of("prune_failed"))


def test_disk_that_has_no_room_for_a_third_step_fails_the_save(
    workers: Workers, tmp_path: Path
) -> None:
    disk = FullDisk(tmp_path)
    committer = filled(workers, StrikeResult(), disk)
    disk.most = 1

    with pytest.raises(StorageFailed, match="No space left"):
        committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[:2] == (5, 4)
    assert all(verify_step(store, step).is_valid for step in (5, 4))
    assert [name for name in store.names() if name.startswith(".tmp")] == []


def test_many_reads_are_told_once_a_second_and_each_file_at_once() -> None:
    ours, theirs = pair()
    now = [100.0]
    report = WriterReport(theirs, clock=lambda: now[0])

    for change in (0, 0, 7, 0, 9, -7, 0):
        report.disk_moved(change)
    now[0] += 1.0
    report.disk_moved(0)
    report.disk_moved(0)
    theirs.send({"kind": "end"})

    found, kinds = [], MessageKinds[DiskMoved](DiskMoved)
    while (line := ours.receive()) in kinds:
        found.append(kinds.decode(line).nbytes)
    ours.close()
    theirs.close()
    assert found == [0, 7, 16, 9, 9]


def test_room_that_is_made_tells_of_its_reads(workers: Workers) -> None:
    """Nothing goes before a newer step was read back, at a bounded rate."""
    told = StrikeResult()
    committer = Committer(workers.plan, StrikeResult())
    for number in range(1, 6):
        nbytes = committer.commit(workers.held(number))
    committer.close(BOUND_S)
    maintenance = CheckpointMaintenance(workers.plan, told)

    maintenance.make_room(nbytes, StagingName(6, 7, 1))

    maintenance.close(BOUND_S)
    assert len(told.being_written) > 5
