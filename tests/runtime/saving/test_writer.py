"""The host's writer commits what workers have copied, whether they still live or not."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from host_saves import LAUNCH, RUN, STEP, Copied, Workers, plan_of, saved_steps, state_of
from host_simulation import HostSimulation
from host_writer import Disk, RunningWriter
from whole_save import save

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.runtime.saving.save_messages import SaveAnswered

ACTIONS = 60

TRANSCRIPTS = {
    "saves take turns in the buffers": ("1 saved:1 2 saved:2 3 saved:3", "30 20 10", ""),
    "states that differ are refused": ("1! unsaved:1 settle:- 2 saved:2", "20", "10"),
    "a plan that comes again costs nothing": ("1 saved:1 plan:7 2 saved:2", "20 10", ""),
    "a durable step is said again": ("1 saved:1 settle:10 settle:10", "10", ""),
    "the newest save that the disk refused is committed": (
        "1 saved:1 full 2 unsaved:2 3 unsaved:3 4 unsaved:4 free settle:40", "40 10", "20 30 40",
    ),
    # The workers were told of the failure, so the writer answers no second time.
    "a disk that is still full has the step before": (
        "1 saved:1 full 2 unsaved:2 settle:10 free settle:20", "20 10", "20",
    ),
    "a buffer that is written over in part is never committed": (
        "full 2 unsaved:2 3 unsaved:3 ~4/0 free settle:30 ~5/1 6 saved:6", "60 30", "20 30",
    ),
    "nor is the only one": ("full 1 unsaved:1 ~3/0 free settle:- rest", "", "10"),
    "whichever part it is": ("full 1 unsaved:1 ~3/1 free settle:- rest", "", "10"),
    # The first writer died before it could answer, and all workers with it.
    "a new writer is told everything again": ("1 saved:1 new 1 2 saved:1 saved:2", "20 10", ""),
    # The first writer died at step 10.  The states differed after step 20, and all died.
    "a new writer has refused a later save": ("2! unsaved:2 1 saved:1 settle:10", "10", "20"),
    "a damaged image replaces nothing that is kept": (
        "1 saved:1 ~2 flip:2 =2 unsaved:2 settle:10", "10", "20",
    ),
    "nor do damaged records": ("1 saved:1 ~2 flip-record:2 =2 unsaved:2 settle:10", "10", "20"),
    "a save that is found damaged is kept no longer": (
        "full 1 unsaved:1 flip:1 free settle:- rest", "", "10",
    ),
}  # fmt: skip
"""What happens, which steps are there in the end, and of which a failure was recorded.

Attempt N saves step 10 N.  ``N`` copies and tells it, ``N!`` with states that differ; ``~N`` only
copies it, ``~N/P`` a part of it, and ``=N`` tells that later.  ``saved`` and ``unsaved`` are the
next answer.
"""


class Play:
    """Plays a transcript."""

    def __init__(self, workers: Workers, writer: RunningWriter, disk: Disk) -> None:
        self.writers = [writer]
        self._workers, self._disk = workers, disk
        self._later: list[Copied] = []

    def happen(self, word: str) -> None:
        """Do or expect one thing."""
        name, _, value = word.partition(":")
        writer, workers = self.writers[-1], self._workers
        match name:
            case "saved" | "unsaved":
                answer = writer.answer()
                found = (answer.is_durable, answer.ticket.attempt)
                assert found == (name == "saved", int(value))
            case "settle":
                assert writer.settle() == (None if value == "-" else int(value))
            case "full" | "free":
                self._disk.is_full = name == "full"
            case "plan":
                writer.plan(workers.plan, int(value))
            case "new":
                self.writers.append(RunningWriter())
                self.writers[-1].use(workers)
            case "flip":
                workers.flip_a_bit(int(value))
            case "flip-record":
                workers.flip_a_record(int(value))
            case "rest":
                writer.rest()
            case _ if name.startswith("="):
                writer.tell(*self._later)
            case _ if name.startswith("~"):
                self._later = self._copied(name[1:])
            case _:
                writer.tell(*self._copied(name))

    def _copied(self, save: str) -> list[Copied]:
        attempt, _, part = save.rstrip("!").partition("/")
        ticket = self._workers.ticket(10 * int(attempt), int(attempt))
        if part:
            return [self._workers.copy(ticket, int(part))]
        return self._workers.copy_all(ticket, ("00", "01") if save.endswith("!") else ())


@pytest.mark.parametrize(("words", "steps", "failed"), TRANSCRIPTS.values(), ids=TRANSCRIPTS.keys())
def test_transcript(
    workers: Workers,
    writer: RunningWriter,
    disk: Disk,
    tmp_path: Path,
    words: str,
    steps: str,
    failed: str,
) -> None:
    play = Play(workers, writer, disk)

    for word in words.split():
        play.happen(word)

    assert saved_steps(tmp_path) == tuple(map(int, steps.split()))
    records = [r for one in play.writers for r in one.recorded("checkpoint", "checkpoint_failed")]
    told = {kind: {r["step"] for r in records if r["event"] == kind} for kind in
            ("checkpoint", "checkpoint_failed")}  # fmt: skip
    assert told["checkpoint"] == set(saved_steps(tmp_path))
    assert told["checkpoint_failed"] == set(map(int, failed.split()))
    assert not any(one.notices for one in play.writers)
    for one in play.writers[1:]:
        one.close()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_of_all_workers_become_a_checkpoint_that_is_answered_once(
    workers: Workers, writer: RunningWriter, tmp_path: Path, parts: int
) -> None:
    copied = workers.copy_all(workers.ticket(STEP, 1, parts))

    writer.tell(*copied)

    assert writer.answer() == SaveAnswered(copied[0].message.ticket, is_durable=True)
    assert saved_steps(tmp_path) == (STEP,)
    (record,) = writer.recorded("checkpoint")
    assert (record["step"], record["generation"]) == (STEP, 7)
    assert max(writer.being_written) > 18_000, "the agent waits for a file of half of the state"
    assert writer.being_written[-1] == 0


def test_states_that_differ_are_named_where_the_save_is_answered_and_recorded(
    workers: Workers, writer: RunningWriter
) -> None:
    writer.tell(*workers.copy_all(workers.ticket(STEP, 1), digests=("00", "01")))

    reason = writer.answer().reason

    assert "the workers' states differ after step 30, so it is not saved" in reason
    assert [record["reason"] for record in writer.recorded("checkpoint_failed")] == [reason]


def test_older_save_of_the_step_that_is_damaged_is_replaced(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """The job has gone back behind the damaged step, and has come to it again."""
    save(CheckpointStore(tmp_path), state_of(STEP), header=Header("run", 7, STEP))
    (shard,) = tmp_path.glob("checkpoints/step-*/shard-*")
    shard.write_bytes(b"rubbish")

    assert writer.save(workers, STEP, 1).is_durable
    assert saved_steps(tmp_path) == (STEP,)


@pytest.mark.parametrize("name", ["MANIFEST.json", "shard-00001-of-00002.h5", "other"])
def test_staging_that_a_killed_writer_has_begun_is_no_hindrance(
    workers: Workers, writer: RunningWriter, tmp_path: Path, name: str
) -> None:
    staging = CheckpointStore(tmp_path).staging(STEP, 7, 1)
    staging.open()
    (staging.path / name).write_bytes(b"half of ")

    assert writer.save(workers, STEP, 1).is_durable
    assert saved_steps(tmp_path) == (STEP,)


def test_run_directory_that_is_gone_fails_the_save_and_not_the_writer(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    elsewhere = Workers(plan_of(tmp_path / "gone" / "run"))
    shutil.rmtree(tmp_path / "gone")
    writer.use(elsewhere)
    answer = writer.save(elsewhere, STEP, 1)
    assert not answer.is_durable
    assert "gone" in answer.reason

    writer.use(workers)

    assert writer.save(workers, STEP, 2).is_durable
    elsewhere.close()


def test_run_directory_of_another_run_takes_no_save(
    workers: Workers, writer: RunningWriter, tmp_path: Path, another_run: Callable[[Path], None]
) -> None:
    another_run(tmp_path)

    answer = writer.save(workers, STEP, 1)

    assert not answer.is_durable
    assert "belongs to run other now, not to run" in answer.reason
    assert CheckpointStore(tmp_path).names() == ()


def test_file_system_that_guarantees_less_is_told_of_once(
    workers: Workers, writer: RunningWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: FileSystem, handle: int, size_bytes: int) -> None:
        raise OSError(errno.ENOTSUP, "no reservations here")

    monkeypatch.setattr(FileSystem, "allocate", refuse)

    for step in (1, 2):
        assert writer.save(workers, step, step).is_durable

    reason = "space cannot be reserved ahead: a full disk shows late"
    assert [r["reason"] for r in writer.recorded("storage_downgrade")] == [reason]
    assert writer.notices == [f"checkpoints are at risk: {reason}"]


def test_stage_of_another_model_is_saved_from_memory_of_its_own(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    assert writer.save(workers, 10, 1).is_durable
    layout = ShardLayout(specs_of(state_of(0)), 3)
    other = Workers(plan_of(tmp_path, layout=layout, numerics={"threads": 2}))
    writer.use(other)

    assert writer.save(other, 20, 2).is_durable

    assert saved_steps(tmp_path) == (20, 10)
    found = [CheckpointStore(tmp_path).scan(step).manifest() for step in (10, 20)]
    assert [(m.writers, m.numerics["threads"]) for m in found] == [(2, 1), (3, 2)]
    other.close()


def test_writer_whose_host_saves_no_more_only_settles_until_its_host_saves_again(
    writer: RunningWriter, disk: Disk, tmp_path: Path
) -> None:
    """The writer of another host looks after old steps then, and two must not do so at once."""
    workers = Workers(plan_of(tmp_path, retention=Retention(2)))
    writer.use(workers)
    disk.is_full = True
    assert not writer.save(workers, 10, 1).is_durable
    disk.is_full = False
    for step in (20, 30, 40):
        cursor = {"stage": 0, "step": step, "epoch": step}
        header = Header(RUN, LAUNCH, step)
        save(CheckpointStore(tmp_path), state_of(step), header=header, cursor=cursor)

    writer.plan(workers.plan, has_maintenance=False)
    assert writer.settle() == 10
    assert saved_steps(tmp_path) == (40, 30, 20, 10)

    writer.plan(workers.plan)
    assert writer.save(workers, 50, 2).is_durable
    writer.close()
    assert saved_steps(tmp_path) == (50, 40)
    workers.close()


def test_checkpoints_that_somebody_removed_are_told_of_once(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    writer.save(workers, 10, 1)
    shutil.rmtree(tmp_path / "checkpoints")

    for attempt, step in enumerate((20, 30), 2):
        assert writer.save(workers, step, attempt).is_durable

    directory = tmp_path / "checkpoints"
    assert saved_steps(tmp_path) == (30, 20)
    assert [r["directory"] for r in writer.recorded("store_removed")] == [str(directory)]
    assert writer.notices == [
        f"{directory} was removed, or its disk unmounted: it has no checkpoint before step 20"
    ]


def open_memory() -> int:
    """Return how many descriptors of memory for saves this process has."""
    gc.collect()
    links = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sum("holdfast-save" in str(link.readlink()) for link in links if link.exists())


def test_memory_of_older_stages_is_given_back(writer: RunningWriter, tmp_path: Path) -> None:
    """Only that of the present stage, and of the one whose save is kept, is held."""
    begun = open_memory()
    held = []
    for stage in range(1, 6):
        workers = Workers(plan_of(tmp_path, shards=stage))
        writer.use(workers)
        writer.save(workers, stage, stage)
        workers.close()
        held.append(open_memory() - begun)

    assert held[1] == held[2] == held[3] == held[4]
    assert held[1] <= 2 * held[0]


@pytest.mark.parametrize(
    "seed",
    [
        *range(30),
        *(pytest.param(seed, marks=pytest.mark.extended) for seed in range(30, 150)),
    ],
)
def test_any_order_of_saves_and_deaths_keeps_every_promise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    with contextlib.closing(HostSimulation(tmp_path, monkeypatch, seed)) as host:
        for _ in range(ACTIONS):
            host.act()
        host.end()
