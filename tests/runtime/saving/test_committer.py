"""A commit is durable or has left nothing; a full disk gets room, and a slow one is told of."""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from committing_report import StrikeResult
from fake_filesystem import FakeFileSystem, Survival
from host_saves import LAUNCH, STEP, Workers, begin_run, commit, plan_of, saved_steps, verify
from host_writer import Head, RunningWriter, SavingHosts

from holdfast.checkpoint.errors import CommitRefused
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import CheckpointMaintenance, Committer
from holdfast.runtime.saving.save_messages import DiskMoved
from holdfast.runtime.saving.writer import WriterReport
from holdfast.runtime.system.channel import MessageKinds, pair

BOUND_S = 60.0
OLD, NEW = 10, 20
OLD_NAME = "step-000000000010"


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(plan_of(tmp_path))
    yield workers
    workers.close()


def saving(files: FakeFileSystem, count: int) -> contextlib.closing[SavingHosts]:
    """Return hosts that find these files; each has a shard, so calls come in one order."""
    plan = plan_of(files.root, shards=count)
    return contextlib.closing(SavingHosts(plan, count, [files], has_care=False))


@functools.cache
def _saved_once(run_dir: Path, count: int) -> FakeFileSystem:
    """Return a file system on which the old step was saved by a launch before."""
    files = FakeFileSystem(run_dir)
    with saving(files, count) as hosts:
        assert hosts.save(OLD, 7).is_durable
    return files


def save(committer: Committer, workers: Workers, step: int, attempt: int = 1) -> None:
    """Copy and commit the state of a step; raises what the committer raises."""
    ticket = workers.ticket(step, attempt)
    workers.hold(ticket)
    commit(committer, workers, ticket)


def newest(files: FakeFileSystem, run_dir: Path) -> int:
    store = CheckpointStore(run_dir, files)
    restored, _ = restore_newest(store)  # a name may survive a cut after a failed sync
    assert restored is not None
    verify(store, restored.manifest.step)
    return restored.manifest.step


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO])
def test_failure_of_any_call_leaves_nothing_and_the_next_commit_succeeds(
    tmp_path: Path, count: int, number: int
) -> None:
    files = copy.deepcopy(_saved_once(tmp_path, count))
    begin = len(files.calls)
    with saving(files, count) as hosts:
        hosts.save(NEW, 1)
    calls = range(begin, len(files.calls))
    assert len(calls) > 20
    failures = 0

    for call in calls:
        files = copy.deepcopy(_saved_once(tmp_path, count))
        files.fail_at(call, number)
        with saving(files, count) as hosts:
            failure = hosts.save(NEW, 1).reason
            if failure:
                failures += 1
                assert errno.errorcode[number] in failure
                assert CheckpointStore(tmp_path, files).names() == (OLD_NAME,), files.calls[call]
            after = files.after_power_cut(Survival.ANYTHING, seed=call)
            expected = OLD if failure else NEW
            assert newest(files, tmp_path) == expected, files.calls[call]
            # A rename that was taken back after a failed sync may be there again after a power
            # cut.  The step is whole then, though nobody was told so.
            assert newest(after, tmp_path) in {expected, NEW}, files.calls[call]
            hosts.save(NEW, 2)
        assert newest(files, tmp_path) == NEW, files.calls[call]
    assert failures > len(calls) / 2


def test_commit_is_told_with_its_bytes(workers: Workers, tmp_path: Path) -> None:
    told = StrikeResult()
    committer = Committer(workers.plan, told)

    save(committer, workers, NEW)

    (record,) = told.of("checkpoint")
    nbytes = sum(p.stat().st_size for p in tmp_path.glob("checkpoints/step-*/*.h5"))
    assert (record["step"], record["generation"], record["bytes"]) == (NEW, LAUNCH, nbytes)
    assert max(told.being_written) <= nbytes
    assert told.being_written.count(0) > 2, "it ends with each file"
    assert told.being_written[-1] == 0
    assert saved_steps(tmp_path) == (NEW,)
    committer.close(BOUND_S)


def test_state_that_is_saved_twice_stays_as_it_is(workers: Workers, tmp_path: Path) -> None:
    """Survivors of a death cannot know whether their save was complete."""
    told = StrikeResult()
    committer = Committer(workers.plan, told)
    save(committer, workers, NEW, 1)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("step-*/*")}

    save(committer, workers, NEW, 2)

    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("step-*/*")} == files
    assert len(CheckpointStore(tmp_path).names()) == 1
    assert len(told.of("checkpoint")) == 1
    (shard, *_) = tmp_path.glob("checkpoints/step-*/shard-*")
    removals = shard.unlink, functools.partial(shutil.rmtree, tmp_path / "checkpoints")
    for attempt, remove in enumerate(removals, 3):
        remove()
        save(committer, workers, NEW, attempt)
        assert saved_steps(tmp_path) == (NEW,), "it is written again if it is gone"
    committer.close(BOUND_S)


class OneFails(FileSystem):
    """The file of the first shard fails once; that of the second is not made before."""

    def __init__(self, root: Path, number: int) -> None:
        super().__init__(root)
        self._number = number
        self._has_failed = threading.Event()

    def create_exclusive(self, path: Path) -> int:
        if path.name.startswith("shard-00000") and not self._has_failed.is_set():
            self._has_failed.set()
            raise OSError(self._number, "bad block")
        self._has_failed.wait(BOUND_S)
        return super().create_exclusive(path)


@pytest.mark.parametrize(("number", "steps"), [(errno.EIO, ()), (errno.ENOSPC, (STEP,))])
def test_failure_of_a_shard_waits_for_the_other_ones(
    workers: Workers, tmp_path: Path, number: int, steps: tuple[int, ...]
) -> None:
    """Else one would make its file in a directory that was removed, or that the next try makes."""
    writer = RunningWriter(OneFails(tmp_path, number))
    writer.use(workers)

    answer = Head(writer).save(workers, STEP, 1)

    assert ("bad block" in answer.reason) is not answer.is_durable
    assert saved_steps(tmp_path) == steps
    assert len(CheckpointStore(tmp_path).names()) == len(steps)
    writer.close()


class SyncedAtOnce(FileSystem):
    """Each of four shards waits in its sync for all of them."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._all_sync = threading.Barrier(4, timeout=10)

    def fsync(self, handle: int) -> None:
        if Path(f"/proc/self/fd/{handle}").readlink().suffix == ".h5":
            self._all_sync.wait()
        super().fsync(handle)


def test_shards_of_a_save_are_synced_at_once(tmp_path: Path) -> None:
    """A sync may take half a minute on a parallel file system: none waits for another one."""
    workers = Workers(plan_of(tmp_path, shards=4))
    committer = Committer(workers.plan, StrikeResult(), files=SyncedAtOnce(tmp_path))

    try:
        save(committer, workers, NEW)
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
    head = Head(writer)

    assert all(head.save(workers, 10 * attempt, attempt).is_durable for attempt in (1, 2, 3, 4))

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
    head = Head(writer)
    head.save(workers, 10, 1)
    assert files.has_begun.wait(BOUND_S)

    writer.use(other)

    assert head.save(other, 20, 2).is_durable
    files.goes_on.set()
    writer.close()
    workers.close()
    other.close()


def test_step_in_the_directory_of_another_run_is_no_answer(tmp_path: Path) -> None:
    plan = plan_of(tmp_path / "run")
    workers, committer = Workers(plan), Committer(plan, StrikeResult())
    save(committer, workers, STEP, 1)
    run = (tmp_path / "run").rename(tmp_path / "moved").with_name("run")
    begin_run(run, "other")
    shutil.copytree(tmp_path / "moved" / "checkpoints", run / "checkpoints")

    with pytest.raises(CommitRefused, match="belongs to run other"):
        save(committer, workers, STEP, 2)

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


@pytest.fixture
def filled(workers: Workers, tmp_path: Path) -> Iterator[tuple[Head, FullDisk]]:
    """Return the head of a run with five steps, none of which has to go by the retention."""
    disk = FullDisk(tmp_path)
    writer = RunningWriter(disk)
    writer.use(workers)
    head = Head(writer)
    for number in range(1, 6):
        assert head.save(workers, number, number).is_durable
    yield head, disk
    writer.close()


def test_oldest_steps_make_room_for_a_new_one(
    filled: tuple[Head, FullDisk], workers: Workers, tmp_path: Path
) -> None:
    head, disk = filled
    disk.most = 4

    assert head.save(workers, 6, 6).is_durable

    told = head.writers[0].recorded("prune_failed")
    assert saved_steps(tmp_path) == (6, 5, 4, 3, 2), "no more than needed goes"
    assert any("the disk is full" in str(record["reason"]) for record in told)


def test_disk_that_has_no_room_for_a_third_step_fails_the_save(
    filled: tuple[Head, FullDisk], workers: Workers, tmp_path: Path
) -> None:
    head, disk = filled
    disk.most = 1

    assert "No space left" in head.save(workers, 6, 6).reason

    assert saved_steps(tmp_path)[:2] == (5, 4)
    names = CheckpointStore(tmp_path).names()
    assert [name for name in names if name.startswith(".tmp")] == []


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
        save(committer, workers, number)
    committer.close(BOUND_S)
    maintenance = CheckpointMaintenance(workers.plan, told)

    maintenance.make_room(workers.plan.layout.nbytes, StagingName(6, 7, 1))

    maintenance.close(BOUND_S)
    assert len(told.being_written) > 5
