"""What rank 0 records of steps, epochs, worlds and recoveries, and who tells it if that dies."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from configs import gives_nothing, journal_of, without_faults, worker_config
from local_communicator import LocalCommunicator

from holdfast.recovery.event import WorkerStopped, WorldFormed
from holdfast.recovery.ledger import Cursor, Ledger
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.system.channel import to_message
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.worker import records
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords

CURSOR = Cursor(3, 0, Ledger(12, 0xABC), np.zeros(1))
WORKERS = (WorkerId(4), WorkerId(5), WorkerId(6))


class Ranked(LocalCommunicator):
    """A communicator that has only a rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank  # type: ignore[misc]


class Story:
    """One worker's records, and what it told."""

    def __init__(self, run_dir: Path, rank: int = 0) -> None:
        self._path = run_dir / "journal.jsonl"
        config = worker_config(WORKERS[rank], WORKERS, run_dir=run_dir, capacity=2)
        self.told: list[dict[str, object]] = []
        self._page, self._journal = WorkerStatus.create(), journal_of(config)
        injector = without_faults(config)
        context = WorkerContext(
            config,
            Ranked(rank),
            self._journal,
            self._page,
            injector,
            self.told.append,
            gives_nothing,
        )
        world = World(1, WORKERS, 2)
        self.membership = Membership(config.worker, world, Ranked(rank), clock=lambda: 0.0)
        self.records = LoopRecords(context, self.membership, epochs=4, verbose=1)

    def lose(self, *lost: WorkerId, rank: int = 0, detected: float = 10.0) -> None:
        """Go through a repair that ended without ``lost``."""
        before = self.membership.world
        self.membership.world = before.shrunk_to([w for w in before.workers if w not in lost])
        self.membership.communicator = Ranked(rank)
        phases = detected + 0.001, detected + 0.002, detected + 0.003
        self.records.world_changed(before, detected, phases, attempts=1)
        self.records.joined(CURSOR)
        self.records.adopted()

    def journal(self, event: str) -> list[dict[str, Any]]:
        return [record for record in read_journal(self._path) if record["event"] == event]

    def close(self) -> None:
        self._page.close()
        self._journal.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The moment of all clocks, which the test sets; it stands before the story."""
    found = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(time, "monotonic", lambda: found.now)
    monkeypatch.setattr(records, "witnessed_s", lambda: found.now)
    return found


@pytest.fixture
def story(tmp_path: Path) -> Iterator[Story]:
    story = Story(tmp_path)
    yield story
    story.close()


@pytest.fixture
def second(tmp_path: Path) -> Iterator[Story]:
    """The story of a worker that is not rank 0."""
    story = Story(tmp_path, rank=1)
    yield story
    story.close()


def test_world_is_told_to_the_agent_and_recorded(story: Story) -> None:
    story.records.joined(CURSOR)

    assert story.told == [to_message(WorldFormed(1, WORKERS, 3, 2))]
    (world,) = story.journal("world")
    assert (world["workers"], world["capacity"], world["step"]) == ([4, 5, 6], 2, 3)


def test_only_rank_0_writes_but_everyone_tells_its_agent(second: Story) -> None:
    second.records.joined(CURSOR)
    second.records.stepped(CURSOR, 1, 4)
    second.records.note(WorkerStopped(WORKERS[0], 3))

    assert len(second.told) == 1
    assert not second.journal("world") + second.journal("step") + second.journal("stopped")


def test_recovery_is_recorded_with_the_step_that_ends_it_and_timed_from_the_death(
    clock: SimpleNamespace, story: Story
) -> None:
    clock.now = 1002.0
    story.lose(WORKERS[1], detected=1000.0)

    assert not story.journal("recovery")
    clock.now = 1004.0
    story.records.stepped(CURSOR, 1, 4)
    story.records.stepped(CURSOR, 1, 4)

    (recovery,) = story.journal("recovery")
    assert (recovery["lost"], recovery["survivors"]) == ([5], [4, 6])
    assert (recovery["generation"], recovery["step"], recovery["attempts"]) == (2, 3, 1)
    phases = ("revoked_ms", "shrunk_ms", "agreed_ms", "adopted_ms", "next_step_ms")
    assert [recovery[phase] for phase in phases] == [1.0, 2.0, 3.0, 2000.0, 4000.0]


def test_second_death_before_the_next_step_belongs_to_the_same_recovery(story: Story) -> None:
    story.lose(WORKERS[1], detected=10.0)
    story.lose(WORKERS[2], detected=10.5)

    story.records.stepped(CURSOR, 1, 4)

    (recovery,) = story.journal("recovery")
    assert (sorted(recovery["lost"]), recovery["survivors"]) == ([5, 6], [4])
    assert recovery["agreed_ms"] == 503.0


def test_new_rank_0_writes_what_the_dead_one_may_have_left_out(second: Story) -> None:
    second.records.stepped(CURSOR, 1, 4)
    second.records.ended_epoch(1, CURSOR, {"loss": 0.5}, None)

    second.lose(WORKERS[0], rank=0)
    second.lose(WORKERS[2], rank=0)

    (step,) = second.journal("step")
    (epoch,) = second.journal("epoch")
    assert (step["step"], step["generation"]) == (3, 1)
    assert epoch["ledger"] == {"samples": 12, "fingerprint": "0000000000000abc", "exact": True}


def test_records_of_long_ago_are_not_written_again(clock: SimpleNamespace, second: Story) -> None:
    """But what the last step found unwritten, however long it took."""
    for clock.now, samples in ((1000.0, 1), (1002.0, 2), (1099.0, 3)):
        second.records.stepped(CURSOR, 2, samples)

    second.lose(WORKERS[0], rank=0)

    assert [record["samples"] for record in second.journal("step")] == [2, 3]


def test_steps_within_half_a_second_are_written_together_as_they_happened(
    clock: SimpleNamespace, story: Story
) -> None:
    counts = []
    for clock.now in (1000.0, 1000.1, 1000.4, 1000.52, 1000.6):
        story.records.stepped(CURSOR, 1, 4)
        counts.append(len(story.journal("step")))

    assert counts == [1, 1, 1, 4, 4]
    story.records.flush()
    moments = [record["now"] for record in story.journal("step")]
    assert moments == [1000.0, 1000.1, 1000.4, 1000.52, 1000.6]


def test_after_five_minutes_a_line_stands_for_all_steps_of_a_while(
    clock: SimpleNamespace, story: Story
) -> None:
    clock.now += 3600.0
    for count, epoch in enumerate([1] * 40 + [2] * 40, start=1):
        clock.now += 0.1
        story.records.transaction_began()
        clock.now += 0.1
        story.records.stepped(dataclasses.replace(CURSOR, step=count), epoch, 4)
    story.records.flush()

    steps = story.journal("step")
    # The first is written at once; then 3.6 s are a thousandth of the hour.
    assert [step["step"] for step in steps] == [1, 20, 39, 40, 58, 77, 80]
    assert [step.get("steps", 1) for step in steps] == [1, 19, 19, 1, 18, 19, 3]
    assert sum(step["samples"] for step in steps) == 80 * 4
    assert sum(step["seconds"] for step in steps) == pytest.approx(80 * 0.1)
    assert {step["epoch"] for step in steps if step["step"] <= 40} == {1}


def test_journal_of_a_long_launch_grows_by_fewer_lines_than_steps(
    clock: SimpleNamespace, story: Story
) -> None:
    hour = 36_000
    for _ in range(hour):
        story.records.transaction_began()
        clock.now += 0.1
        story.records.stepped(CURSOR, 1, 9)
    story.records.flush()

    steps = story.journal("step")
    assert sum(step.get("steps", 1) for step in steps) == hour
    early = [step for step in steps if step["now"] <= 1000.0 + 300.0]
    late = steps[len(early) :]
    assert len(early) == pytest.approx(3000, abs=10), "five minutes have a line for each step"
    assert len(late) < (hour - len(early)) / 10


def test_longest_step_is_told_without_the_attempts_that_failed(
    clock: SimpleNamespace, story: Story
) -> None:
    for attempts_s in [(0.5,), (60.0, 2.0), (1.0,)]:
        for seconds in attempts_s:
            story.records.transaction_began()
            clock.now += seconds
        story.records.stepped(CURSOR, 1, 9)
    story.records.flush()

    assert story.records.longest_step_s == 2.0
    assert [step["seconds"] for step in story.journal("step")] == [0.5, 2.0, 1.0]


def test_what_is_noted_comes_after_the_steps_before_it(story: Story) -> None:
    story.records.stepped(CURSOR, 1, 4)
    story.records.stepped(CURSOR, 1, 4)
    story.records.note(WorkerStopped(WORKERS[0], 3))

    assert [len(story.journal(event)) for event in ("step", "stopped")] == [2, 1]
    story.records.stepped(CURSOR, 1, 4)
    story.records.ended_epoch(1, CURSOR, {"loss": 0.5}, None)  # is written at once

    assert [len(story.journal(event)) for event in ("step", "epoch")] == [3, 1]


def end_epoch(story: Story) -> None:
    story.records.ended_epoch(1, CURSOR, {"loss": np.float32(0.5)}, None)  # type: ignore[dict-item]


def test_epoch_is_told_by_rank_0_with_what_its_line_needs(story: Story) -> None:
    end_epoch(story)

    (told,) = story.told
    assert told.pop("seconds") == story.journal("epoch")[0]["seconds"]
    named = {name: value for name, value in told.items() if value is not None}
    assert named == {
        "kind": "Epoch", "epoch": 1, "step": 3, "metrics": {"loss": 0.5}, "epochs": 4, "verbose": 1,
    }  # fmt: skip


def test_next_rank_0_tells_the_last_epoch_again(second: Story) -> None:
    second.records.joined(CURSOR)
    end_epoch(second)
    assert [told["kind"] for told in second.told] == ["WorldFormed"]

    second.lose(WORKERS[0], rank=0)

    assert [told["kind"] for told in second.told] == ["WorldFormed", "Epoch", "WorldFormed"]
