"""The host's writer commits what workers have copied, whether they still live or not."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from host_saves import STEP, Workers, plan_of, saved_steps, state_of
from host_writer import RunningWriter, journal

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import ShardLayout, specs_of


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_of_all_workers_become_a_checkpoint_that_is_answered_once(
    workers: Workers, writer: RunningWriter, tmp_path: Path, parts: int
) -> None:
    copied = workers.copy_all(workers.ticket(STEP, 1, parts))
    writer.tell(*copied[1:])
    assert writer.kept() is None
    assert saved_steps(tmp_path) == ()

    writer.tell(copied[0])

    answer = writer.answer()
    assert answer.pop("bytes") > 36_000
    assert answer == {"kind": "saved", "launch": 7, "attempt": 1, "step": STEP}
    assert saved_steps(tmp_path) == (STEP,)
    (record,) = journal(tmp_path, "checkpoint")
    assert (record["step"], record["generation"]) == (STEP, 7)
    assert record["source"] == "snapshot writer"
    assert max(writer.being_written) > 18_000, "the agent waits for a file of half of the state"
    assert writer.being_written[-1] == 0
    assert writer.kept() == STEP


def test_saves_take_turns_in_the_buffers(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    for attempt in range(1, 6):
        assert writer.save(workers, 10 * attempt, attempt)["kind"] == "saved"

    assert saved_steps(tmp_path) == (50, 40, 30, 20, 10)


def test_part_that_is_told_twice_counts_once(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    first, second = workers.copy_all(workers.ticket(STEP, 1))
    writer.tell(first, first)
    assert writer.kept() is None

    writer.tell(second)

    assert writer.answer()["kind"] == "saved"
    assert writer.kept() == STEP


def test_parts_of_states_that_differ_are_refused(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.tell(*workers.copy_all(workers.ticket(STEP, 1), digests=("00", "01")))

    answer = writer.answer()

    assert (answer["kind"], answer["attempt"]) == ("unsaved", 1)
    assert "the workers' states differ after step 30, so it is not saved" in answer["reason"]
    (record,) = journal(tmp_path, "checkpoint_failed")
    assert record["reason"] == answer["reason"]
    assert writer.settle() is None
    assert saved_steps(tmp_path) == ()
    assert writer.save(workers, 40, 2)["kind"] == "saved"


def test_parts_of_two_attempts_do_not_make_one_checkpoint(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.tell(workers.copy(workers.ticket(STEP, 1), 0))
    writer.tell(workers.copy(workers.ticket(STEP, 2), 1))
    assert writer.answer()["attempt"] == 1

    assert writer.settle() is None
    assert saved_steps(tmp_path) == ()


def test_save_that_stays_incomplete_is_answered_when_a_later_one_begins(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """A worker died, and the survivors save again in a world of their own."""
    writer.tell(workers.copy(workers.ticket(20, 1), 0))
    later = workers.copy_all(workers.ticket(30, 2, generation=8))

    writer.tell(later[0])

    expected = {"kind": "unsaved", "launch": 7, "attempt": 1, "step": 20, "is_expected": True}
    assert writer.answer() == expected
    writer.tell(later[1])
    assert (writer.answer()["kind"], saved_steps(tmp_path)) == ("saved", (30,))
    assert journal(tmp_path, "checkpoint_failed") == []
    assert writer.notices == []


def test_late_part_of_an_older_save_changes_nothing_for_the_one_in_hand(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    late = workers.copy_all(workers.ticket(20, 1))
    newer = workers.copy_all(workers.ticket(30, 2, generation=8))
    writer.tell(newer[0], *late)
    assert writer.kept() is None

    writer.tell(newer[1])

    assert (writer.answer()["step"], saved_steps(tmp_path)) == (30, (30,))


def test_part_of_an_older_save_that_comes_after_a_newer_one_is_not_answered_again(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """A dying worker's last message was read late: the failure of save 2 must stay the last."""
    first, late = workers.copy_all(workers.ticket(20, 1))
    writer.tell(first)
    newer = workers.copy_all(workers.ticket(30, 2, generation=8))
    writer.tell(*newer)
    assert [writer.answer()["attempt"] for _ in range(2)] == [1, 2]

    writer.tell(late)

    answer = writer.save(workers, 40, 3, generation=8)
    assert (answer["kind"], answer["attempt"]) == ("saved", 3)
    assert saved_steps(tmp_path) == (40, 30)


def test_parts_of_a_save_that_is_done_change_nothing(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """The agent tells a new writer all saves in memory, when all workers have died."""
    copied = workers.copy_all(workers.ticket(STEP, 1))
    writer.tell(*copied)
    writer.answer()

    writer.tell(*copied)

    assert writer.settle() == STEP
    assert len(journal(tmp_path, "checkpoint")) == 1


def test_new_world_ends_the_wait_for_a_save_that_stays_incomplete(
    workers: Workers, writer: RunningWriter
) -> None:
    """With one buffer the survivors wait for the answer before they copy again."""
    ticket = workers.ticket(20, 1)
    writer.tell(workers.copy(ticket, 0))

    writer.plan(workers.plan, ticket.generation + 1)

    answer = writer.answer()
    assert (answer["kind"], answer["attempt"], answer["is_expected"]) == ("unsaved", 1, True)
    writer.tell(workers.copy(workers.ticket(20, 1), 1))
    assert writer.kept() is None


def test_part_that_comes_before_the_plan_of_its_world_counts(
    workers: Workers, writer: RunningWriter
) -> None:
    """It has another channel to the agent than the worker that tells the plan."""
    first, second = workers.copy_all(workers.ticket(20, 1, generation=9))
    writer.tell(second)

    writer.plan(workers.plan, 9)
    writer.tell(first)

    assert writer.answer()["kind"] == "saved"


def test_committed_step_that_is_saved_again_is_left_alone(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, STEP, 1)
    (manifest,) = tmp_path.glob("checkpoints/*/MANIFEST.json")
    before = manifest.stat().st_ino

    assert writer.save(workers, STEP, 2)["kind"] == "saved"

    assert manifest.stat().st_ino == before
    assert CheckpointStore(tmp_path).names() == ("step-000000000030",)


def test_older_save_of_the_step_that_is_damaged_is_replaced(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """The job has gone back behind the damaged step, and has come to it again."""
    save(CheckpointStore(tmp_path), state_of(STEP), header=Header("run", 7, STEP))
    (shard,) = tmp_path.glob("checkpoints/step-*/shard-*")
    shard.write_bytes(b"rubbish")

    assert writer.save(workers, STEP, 1)["kind"] == "saved"
    assert saved_steps(tmp_path) == (STEP,)


@pytest.mark.parametrize("name", ["MANIFEST.json", "shard-00001-of-00002.h5", "other"])
def test_staging_that_a_killed_writer_has_begun_is_no_hindrance(
    workers: Workers, writer: RunningWriter, tmp_path: Path, name: str
) -> None:
    staging = CheckpointStore(tmp_path).stage(STEP, 7, 1)
    (staging.path / name).write_bytes(b"half of ")

    assert writer.save(workers, STEP, 1)["kind"] == "saved"
    assert saved_steps(tmp_path) == (STEP,)


@pytest.mark.parametrize("shard", [0, 1, 2])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_save_that_fails_at_any_shard_leaves_nothing_and_the_next_one_succeeds(
    writer: RunningWriter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shard: int,
    number: int,
) -> None:
    workers = Workers(plan_of(tmp_path, shards=3))
    writer.use(workers)
    plain = LocalFileSystem.create_exclusive

    def create(files: LocalFileSystem, path: Path) -> int:
        if path.name.startswith(f"shard-{shard:05d}"):
            raise OSError(number, "not now")
        return plain(files, path)

    with monkeypatch.context() as patch:
        patch.setattr(LocalFileSystem, "create_exclusive", create)
        answer = writer.save(workers, 20, 1)

    assert (answer["kind"], answer["attempt"]) == ("unsaved", 1)
    assert f"({errno.errorcode[number]})" in answer["reason"]
    assert CheckpointStore(tmp_path).names() == ()
    (record,) = journal(tmp_path, "checkpoint_failed")
    assert (record["step"], record["reason"]) == (20, answer["reason"])
    assert writer.save(workers, 30, 2)["kind"] == "saved"
    assert saved_steps(tmp_path) == (30,)
    workers.close()


def test_run_directory_that_is_gone_fails_the_save_and_not_the_writer(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    elsewhere = Workers(plan_of(tmp_path / "gone" / "run"))
    writer.use(elsewhere)
    answer = writer.save(elsewhere, STEP, 1)
    assert answer["kind"] == "unsaved"
    assert "gone" in answer["reason"]

    writer.use(workers)

    assert writer.save(workers, STEP, 2)["kind"] == "saved"
    elsewhere.close()


def test_run_directory_of_another_run_takes_no_save(
    workers: Workers, writer: RunningWriter, tmp_path: Path, another_run: Callable[[Path], None]
) -> None:
    another_run(tmp_path)

    answer = writer.save(workers, STEP, 1)

    assert answer["kind"] == "unsaved"
    assert "belongs to run other now, not to run" in answer["reason"]
    assert CheckpointStore(tmp_path).names() == ()


def test_file_system_that_guarantees_less_is_told_of_once(
    workers: Workers, writer: RunningWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: LocalFileSystem, handle: int, size_bytes: int) -> None:
        raise OSError(errno.ENOTSUP, "no reservations here")

    monkeypatch.setattr(LocalFileSystem, "allocate", refuse)

    for step in (1, 2):
        assert writer.save(workers, step, step)["kind"] == "saved"

    reason = "space cannot be reserved ahead: a full disk shows late"
    assert [r["reason"] for r in journal(tmp_path, "storage_downgrade")] == [reason]
    assert writer.notices == [f"checkpoints are at risk: {reason}"]


def test_stage_of_another_model_is_saved_from_memory_of_its_own(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    assert writer.save(workers, 10, 1)["kind"] == "saved"
    layout = ShardLayout(specs_of(state_of(0)), 3)
    other = Workers(plan_of(tmp_path, layout=layout, numerics={"threads": 2}))
    writer.use(other)

    assert writer.save(other, 20, 2)["kind"] == "saved"

    assert saved_steps(tmp_path) == (20, 10)
    found = [CheckpointStore(tmp_path).scan(step).manifest() for step in (10, 20)]
    assert [(m.writers, m.numerics["threads"]) for m in found] == [(2, 1), (3, 2)]
    other.close()


def test_plan_that_comes_again_for_another_world_costs_nothing(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, 10, 1)
    writer.plan(workers.plan)

    assert writer.save(workers, 20, 2)["kind"] == "saved"
    assert writer.kept() == 20
    assert saved_steps(tmp_path) == (20, 10)


def test_checkpoints_that_somebody_removed_are_told_of_once(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, 10, 1)
    shutil.rmtree(tmp_path / "checkpoints")

    for attempt, step in enumerate((20, 30), 2):
        assert writer.save(workers, step, attempt)["kind"] == "saved"

    directory = tmp_path / "checkpoints"
    assert saved_steps(tmp_path) == (30, 20)
    assert [r["directory"] for r in journal(tmp_path, "store_removed")] == [str(directory)]
    assert writer.notices == [
        f"{directory} was removed, or its disk unmounted: it has no checkpoint before step 20"
    ]
