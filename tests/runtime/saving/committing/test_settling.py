"""When all workers have died, what is complete in memory becomes durable."""

from __future__ import annotations

from pathlib import Path

import pytest
from host_saves import STEP, Copied, Workers, saved_steps
from host_writer import Disk, RunningWriter, journal

from holdfast.checkpoint.store import CheckpointStore


def test_step_that_is_durable_is_said_again(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, STEP, 1)

    assert writer.settle() == STEP
    assert writer.settle() == STEP
    assert len(journal(tmp_path, "checkpoint")) == 1


def test_part_of_one_worker_alone_is_not_committed(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.tell(workers.copy(workers.ticket(STEP, 1), 0))

    assert writer.settle() is None
    assert saved_steps(tmp_path) == ()


def test_part_that_comes_after_the_end_of_its_save_completes_nothing(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    first, second = workers.copy_all(workers.ticket(STEP, 1))
    writer.tell(first)
    writer.settle()

    writer.tell(second)

    assert writer.settle() is None
    assert saved_steps(tmp_path) == ()


def test_newest_complete_save_that_the_disk_refused_is_committed(
    workers: Workers, writer: RunningWriter, tmp_path: Path, disk: Disk
) -> None:
    writer.save(workers, 10, 1)
    disk.is_full = True
    for attempt in (2, 3, 4):
        assert writer.save(workers, 10 * attempt, attempt)["kind"] == "unsaved"
    disk.is_full = False

    assert writer.settle() == 40

    assert saved_steps(tmp_path) == (40, 10)
    assert [record["step"] for record in journal(tmp_path, "checkpoint")] == [10, 40]


def test_disk_that_is_still_full_has_the_step_before(
    workers: Workers, writer: RunningWriter, tmp_path: Path, disk: Disk
) -> None:
    """The workers were told of the failure, so the writer answers no second time."""
    writer.save(workers, 10, 1)
    disk.is_full = True
    writer.save(workers, 20, 2)

    assert writer.settle() == 10

    assert writer.kept() == 20
    assert CheckpointStore(tmp_path).names() == ("step-000000000010",)
    assert [r["step"] for r in journal(tmp_path, "checkpoint_failed")] == [20, 20]
    disk.is_full = False
    assert writer.settle() == 20


def test_staging_that_the_workers_have_lost_is_made_again_from_memory(
    workers: Workers, writer: RunningWriter, tmp_path: Path, disk: Disk
) -> None:
    disk.is_full = True
    writer.save(workers, STEP, 1)
    disk.is_full = False
    staging = CheckpointStore(tmp_path).stage(STEP, 7, 1)
    (staging.path / "shard-00000-of-00002.h5").write_bytes(b"half of ")

    assert writer.settle() == STEP
    assert saved_steps(tmp_path) == (STEP,)


def test_buffer_that_is_written_over_while_its_save_is_not_durable_is_never_committed(
    workers: Workers, writer: RunningWriter, tmp_path: Path, disk: Disk
) -> None:
    """Step 40 was copied in part where step 20 was, and then all workers died."""
    disk.is_full = True
    writer.save(workers, 20, 2)
    writer.save(workers, 30, 3)
    workers.copy(workers.ticket(40, 4), 0)
    disk.is_full = False

    assert writer.settle() == 30
    assert saved_steps(tmp_path) == (30,)
    workers.copy(workers.ticket(50, 5), 1)
    assert writer.save(workers, 60, 6)["kind"] == "saved"
    assert saved_steps(tmp_path) == (60, 30)


@pytest.mark.parametrize("part", [0, 1])
def test_only_buffer_that_is_written_over_in_part_is_never_committed(
    workers: Workers, writer: RunningWriter, tmp_path: Path, disk: Disk, part: int
) -> None:
    disk.is_full = True
    writer.save(workers, 20, 1)
    workers.copy(workers.ticket(30, 3), part)
    disk.is_full = False

    assert writer.settle() is None
    assert saved_steps(tmp_path) == ()
    assert writer.kept() is None


def test_new_writer_that_is_told_everything_again_commits_it(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """The first writer has died before it could answer, and all workers with it."""
    saves = [workers.copy_all(workers.ticket(step, attempt)) for step, attempt in SAVES]
    other = RunningWriter()
    other.use(workers)
    other.tell(*(part for copied in saves for part in copied))

    assert [other.answer()["step"] for _ in SAVES] == [10, 20]
    assert other.settle() == 20

    assert saved_steps(tmp_path) == (20, 10)
    other.close()


SAVES = ((10, 1), (20, 2))


def test_new_writer_is_told_a_save_that_is_durable_already(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    copied: list[Copied] = workers.copy_all(workers.ticket(STEP, 1))
    writer.tell(*copied)
    writer.answer()
    other = RunningWriter()
    other.use(workers)

    other.tell(*copied)

    assert other.answer()["kind"] == "saved"
    assert (other.settle(), other.kept()) == (STEP, STEP)
    assert CheckpointStore(tmp_path).names() == ("step-000000000030",)
    other.close()


def test_new_writer_that_has_refused_a_later_save_still_commits_an_older_one(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """The first writer died at step 20.  The states differed after step 30, and all died."""
    older = workers.copy_all(workers.ticket(20, 1))
    writer.tell(*workers.copy_all(workers.ticket(30, 2), digests=("00", "01")))
    assert writer.answer()["kind"] == "unsaved"

    writer.tell(*older)

    assert (writer.answer()["step"], writer.settle()) == (20, 20)
    assert saved_steps(tmp_path) == (20,)
