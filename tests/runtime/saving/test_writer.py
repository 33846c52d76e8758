"""The host's writer commits what workers have copied, whether they still live or not."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from host_saves import LAUNCH, STEP, Workers, begin_run, cursor_of, plan_of, saved_steps, state_of
from host_simulation import HostSimulation
from host_writer import Disk, Head, RunningWriter, SavingHosts
from whole_save import save

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.recovery.saves import (
    CommitSave,
    PartHeld,
    SaveAnswered,
    SaveCommitted,
    ShareWritten,
    WriteShare,
)
from holdfast.runtime.run.run_directory import RunDirectory

ACTIONS = 200

TRANSCRIPTS = {
    "saves take turns in the buffers": ("1+ 2+ 3+", "30 20 10"),
    "states that differ are refused": ("1! settle:- 2+", "20"),
    "a plan that comes again costs nothing": ("1+ plan:7 2+", "20 10"),
    "a durable step is said again": ("1+ settle:10 settle:10", "10"),
    "the newest save that the disk refused is committed": (
        "1+ full 2- 3- 4- free settle:40", "40 10",
    ),
    "a disk that is still full has the step before": ("1+ full 2- settle:10", "10"),
    "a buffer that is written over in part is never committed": (
        "full 2- 3- copy:4/0 free settle:30", "30",
    ),
    "the save before it is": ("full 2- 3- copy:5/0 free settle:20", "20"),
    "nor is the only one": ("full 1- copy:3/0 free settle:-", ""),
    "whichever part it is": ("full 1- copy:3/1 free settle:-", ""),
    "nor one whose worker has said nothing yet": ("full 1- begin:3/1 free settle:-", ""),
    "a new writer needs the memory alone": ("1+ new 2+", "20 10"),
    "which outlives the one before": ("full 1- new free settle:10", "10"),
    "a damaged image replaces nothing that is kept": ("1+ copy:2 flip:2 2- settle:10", "10"),
    "nor do damaged records": ("1+ copy:2 flip-record:2 2- settle:10", "10"),
}  # fmt: skip
"""What happens, and which steps are there in the end.

Attempt N saves step 10 N.  ``N+`` copies it, and it becomes durable; ``N-`` does not, and ``N!`` is
of states that differ.  ``copy:N`` only copies it, ``copy:N/P`` a part of it, of which ``begin:N/P``
has no record and no row.
"""


class Play:
    """Plays a transcript."""

    def __init__(self, workers: Workers, writer: RunningWriter, disk: Disk) -> None:
        self.writers, self.head = [writer], Head(writer)
        self._workers, self._disk = workers, disk
        self._copied: dict[int, PartHeld] = {}

    def happen(self, word: str) -> None:
        """Do or expect one thing."""
        name, _, value = word.partition(":")
        workers = self._workers
        match name:
            case "settle":
                assert self.head.settle() == (None if value == "-" else int(value))
            case "full" | "free":
                self._disk.is_full = name == "full"
            case "plan":
                self.writers[-1].plan(workers.plan_message(int(value)))
            case "new":
                self.writers.append(RunningWriter())
                self.writers[-1].use(workers)
                self.head.writers = self.writers[-1:]
            case "flip":
                workers.flip_a_bit(int(value))
            case "flip-record":
                workers.flip_a_record(int(value))
            case "copy" | "begin":
                self._copy(name, *map(int, value.split("/")))
            case _:
                self._save(int(name[:-1]), name[-1])

    def _copy(self, how: str, attempt: int, part: int | None = None) -> None:
        workers, ticket = self._workers, self._workers.ticket(10 * attempt, attempt)
        if part is None:
            self._copied[attempt] = workers.hold(ticket)
        elif how == "copy":
            workers.copy(ticket, part)
        else:
            workers.begin_copy(ticket, part)

    def _save(self, attempt: int, end: str) -> None:
        digests = ("00" * 16, "01" * 16) if end == "!" else ()
        ticket = self._workers.ticket(10 * attempt, attempt)
        if attempt not in self._copied:
            self._copied[attempt] = self._workers.hold(ticket, digests=digests)
        self.head.hear(self._copied[attempt])
        (answer,) = [found for found in self.head.answers if found.ticket == ticket]
        assert answer.is_durable is (end == "+")


@pytest.mark.parametrize(("words", "steps"), TRANSCRIPTS.values(), ids=TRANSCRIPTS.keys())
def test_transcript(
    workers: Workers, writer: RunningWriter, disk: Disk, tmp_path: Path, words: str, steps: str
) -> None:
    play = Play(workers, writer, disk)

    for word in words.split():
        play.happen(word)

    assert saved_steps(tmp_path) == tuple(map(int, steps.split()))
    told = [r["step"] for one in play.writers for r in one.recorded("checkpoint")]
    assert sorted(told, reverse=True) == list(saved_steps(tmp_path))
    assert not any(one.notices for one in play.writers)
    for one in play.writers[1:]:
        one.close()


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_of_all_workers_become_a_checkpoint_that_is_answered_once(
    workers: Workers, writer: RunningWriter, head: Head, tmp_path: Path, parts: int
) -> None:
    ticket = workers.ticket(STEP, 1)

    head.hear(workers.hold(ticket, parts))

    assert head.answers == [SaveAnswered(ticket, is_durable=True)]
    assert saved_steps(tmp_path) == (STEP,)
    (record,) = writer.recorded("checkpoint")
    assert (record["step"], record["generation"]) == (STEP, 7)
    assert max(writer.being_written) > 18_000, "the agent waits for a file of half of the state"
    assert writer.being_written[-1] == 0


def test_commit_goes_by_the_plan_of_its_world_and_the_next_writer_answers_it_again(
    workers: Workers, writer: RunningWriter, tmp_path: Path
) -> None:
    """Meanwhile fewer and fewer hosts are left, and each number has memory of its own."""
    ticket, told = workers.ticket(STEP, 1), workers.plan_message()
    workers.hold(ticket)
    later = RunningWriter()
    later.use(workers)

    for one in (writer, later):
        written = one.do(WriteShare(ticket, 0, ""))
        assert isinstance(written, ShareWritten)
        for hosts in (4, 3, 2):
            generation, layout = LAUNCH + 5 - hosts, workers.plan.layout_id(0, hosts)
            one.plan(replace(told, generation=generation, layout=layout, hosts=hosts))
        commit = CommitSave(ticket, (written.records,), cursor_of(STEP), 0.0)
        assert one.do(commit) == SaveCommitted(ticket)

    assert saved_steps(tmp_path) == (STEP,)
    assert len(CheckpointStore(tmp_path).names()) == 1
    later.close()


class Watched(FileSystem):
    """Notes whether anybody looks for old steps."""

    has_care = False

    def list(self, path: Path) -> tuple[str, ...]:
        self.has_care |= threading.current_thread().name.startswith("holdfast-care")
        return super().list(path)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_each_host_writes_its_share_and_the_first_one_commits(tmp_path: Path, count: int) -> None:
    """It alone looks after old steps: two must not do so at once."""
    files = [Watched(tmp_path) for _ in range(count)]
    with contextlib.closing(SavingHosts(plan_of(tmp_path, shards=4), count, files)) as hosts:
        answers = [hosts.save(10 * attempt, attempt) for attempt in (1, 2, 3)]

    assert all(answer.is_durable for answer in answers)
    assert saved_steps(tmp_path) == (30, 20, 10)
    assert [disk.has_care for disk in files] == [True] + [False] * (count - 1)


@pytest.mark.parametrize("lost", [1, 2])
def test_share_of_a_lost_host_is_written_by_the_next_one_once_all_workers_are_dead(
    tmp_path: Path, disk: Disk, lost: int
) -> None:
    with contextlib.closing(SavingHosts(plan_of(tmp_path, shards=6), 3)) as hosts:
        disk.is_full = True
        assert not hosts.save(STEP, 1).is_durable
        disk.is_full = False

        hosts.head.lose(lost)
        hosts.writers[lost].close()

        assert hosts.head.settle() == STEP
    assert saved_steps(tmp_path) == (STEP,)


def test_older_save_of_the_step_that_is_damaged_is_replaced(
    workers: Workers, head: Head, tmp_path: Path
) -> None:
    """The job has gone back behind the damaged step, and has come to it again."""
    save(CheckpointStore(tmp_path), state_of(STEP), header=Header("run", 7, STEP))
    (shard,) = tmp_path.glob("checkpoints/step-*/shard-*")
    shard.write_bytes(b"rubbish")

    assert head.save(workers, STEP, 1).is_durable
    assert saved_steps(tmp_path) == (STEP,)


@pytest.mark.parametrize("name", ["MANIFEST.json", "shard-00001-of-00002.h5"])
def test_staging_that_a_killed_writer_has_begun_is_no_hindrance(
    workers: Workers, head: Head, tmp_path: Path, name: str
) -> None:
    staging = CheckpointStore(tmp_path).staging(STEP, 7, 1)
    staging.open()
    (staging.path / name).write_bytes(b"half of ")

    assert head.save(workers, STEP, 1).is_durable
    assert saved_steps(tmp_path) == (STEP,)


def test_run_directory_that_is_gone_fails_the_save_and_not_the_writer(
    workers: Workers, head: Head, tmp_path: Path
) -> None:
    elsewhere = Workers(plan_of(tmp_path / "gone" / "run"))
    shutil.rmtree(tmp_path / "gone")
    (writer,) = head.writers
    writer.use(elsewhere)
    answer = head.save(elsewhere, STEP, 1)
    assert not answer.is_durable
    assert "gone" in answer.reason

    writer.use(workers)

    assert head.save(workers, STEP, 2).is_durable
    elsewhere.close()


def test_run_directory_of_another_run_takes_no_save(
    workers: Workers, head: Head, tmp_path: Path
) -> None:
    RunDirectory(tmp_path).record_path.unlink()
    begin_run(tmp_path, "other")

    answer = head.save(workers, STEP, 1)

    assert not answer.is_durable
    assert "belongs to run other now, not to run" in answer.reason
    assert CheckpointStore(tmp_path).names() == ()


@pytest.mark.parametrize("commits", [True, False])
def test_file_system_that_guarantees_less_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, commits: bool
) -> None:
    def refuse(self: FileSystem, handle: int, size_bytes: int) -> None:
        raise OSError(errno.ENOTSUP, "no reservations here")

    monkeypatch.setattr(FileSystem, "allocate", refuse)

    workers, writer = Workers(plan_of(tmp_path)), RunningWriter(commits=commits)
    writer.use(workers)
    head = Head(writer)
    for step in (1, 2):
        assert head.save(workers, step, step).is_durable

    reasons = ["space cannot be reserved ahead: a full disk shows late"] * commits
    assert [r["reason"] for r in writer.recorded("storage_downgrade")] == reasons
    assert writer.notices == [f"checkpoints are at risk: {reason}" for reason in reasons]
    writer.close()
    workers.close()


def test_stage_of_another_model_is_saved_from_memory_of_its_own(
    workers: Workers, writer: RunningWriter, head: Head, tmp_path: Path
) -> None:
    assert head.save(workers, 10, 1).is_durable
    layout = ShardLayout(specs_of(state_of(0)), 3)
    other = Workers(plan_of(tmp_path, layout=layout, numerics={"threads": 2}))
    writer.use(other)

    assert head.save(other, 20, 2).is_durable

    assert saved_steps(tmp_path) == (20, 10)
    found = [CheckpointStore(tmp_path).scan(step).manifest() for step in (10, 20)]
    assert [(m.writers, m.numerics["threads"]) for m in found] == [(2, 1), (3, 2)]
    other.close()


def test_checkpoints_that_somebody_removed_are_told_of_once(
    workers: Workers, writer: RunningWriter, head: Head, tmp_path: Path
) -> None:
    head.save(workers, 10, 1)
    shutil.rmtree(tmp_path / "checkpoints")

    for attempt, step in enumerate((20, 30), 2):
        assert head.save(workers, step, attempt).is_durable

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


def test_memory_of_older_stages_is_given_back(
    writer: RunningWriter, head: Head, tmp_path: Path
) -> None:
    """Only that of the present stage, and of the one before it, is held."""
    begun = open_memory()
    held = []
    for stage in range(1, 6):
        workers = Workers(plan_of(tmp_path, shards=stage))
        writer.use(workers)
        head.save(workers, stage, stage)
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
    with contextlib.closing(HostSimulation(tmp_path, monkeypatch, seed)) as hosts:
        for _ in range(ACTIONS):
            hosts.act()
        hosts.end()
