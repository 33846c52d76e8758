"""What a journal keeps of many steps: sums over runs of them, and nothing is lost."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs import without_faults, worker_config
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.ledger import Cursor, Ledger
from holdfast.recovery.world import WorkerId, World
from holdfast.runtime.exchange.communicator import LocalCommunicator
from holdfast.runtime.exchange.membership import Membership, RepairTimes
from holdfast.runtime.run.journal import read_journal
from holdfast.runtime.worker import records
from holdfast.runtime.worker.context import WorkerContext, journal_of
from holdfast.runtime.worker.records import LoopRecords, _Commit, _merged

CURSOR = Cursor(3, 0, Ledger(12, 0xABC), np.zeros(1))


@st.composite
def histories(draw: st.DrawFn) -> list[_Commit]:
    """Draw steps of epochs and worlds that come one after the other, and ends of epochs."""
    found: list[_Commit] = []
    epoch = generation = 1
    for step in range(1, draw(st.integers(0, 25)) + 1):
        seconds, samples = draw(st.integers(1, 9)) / 8, draw(st.integers(1, 9))
        fields = {"step": step, "epoch": epoch, "seconds": seconds, "samples": samples}
        found.append(_Commit("step", float(step), 1e9 + step, generation, fields))
        match draw(st.sampled_from(["step", "step", "epoch", "told before", "world"])):
            case "epoch":
                ended = {"step": step, "epoch": epoch}
                found.append(_Commit("epoch", step + 0.5, 1e9 + step, generation, ended))
                epoch += 1
            case "told before":
                epoch += 1
            case "world":
                generation += 1
    return found


def summed(commits: list[_Commit], name: str) -> float:
    return sum(commit.fields.get(name, 1) for commit in commits if commit.event == "step")


def kind_of(commit: _Commit) -> tuple[str, int, Any]:
    return commit.event, commit.generation, commit.fields["epoch"]


@given(commits=histories())
def test_merged_steps_add_up_to_all_of_them(commits: list[_Commit]) -> None:
    merged = list(_merged(commits))

    for name in ("steps", "seconds", "samples"):
        assert summed(merged, name) == summed(commits, name)
    assert [commit for commit in merged if commit.event == "epoch"] == [
        commit for commit in commits if commit.event == "epoch"
    ]


@given(commits=histories())
def test_merged_line_ends_with_the_last_step_of_its_epoch_and_world(
    commits: list[_Commit],
) -> None:
    runs = [list(run) for _, run in itertools.groupby(commits, kind_of)]

    merged = list(_merged(commits))

    assert [kind_of(commit) for commit in merged] == [kind_of(run[-1]) for run in runs]
    for line, run in zip(merged, runs, strict=True):
        assert (line.now, line.time, line.fields["step"]) == (
            run[-1].now, run[-1].time, run[-1].fields["step"],
        )  # fmt: skip


class Clocked:
    """The records of a worker alone, by a clock that the test sets."""

    def __init__(self, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(records, "witnessed_s", lambda: self.now)
        config = worker_config(run_dir=run_dir)
        self._path = run_dir / "journal.jsonl"
        self.journal = journal_of(config)
        page: Any = None
        context = WorkerContext(
            config, LocalCommunicator(), self.journal, page, without_faults(config), lambda _: None
        )
        self.membership = Membership(
            config.worker, World(2, (WorkerId(0),), 1), LocalCommunicator(), clock=lambda: 0.0
        )
        self.records = LoopRecords(context, self.membership)

    def step(self, *attempts_s: float) -> None:
        """Make a step whose attempts took so long; the last one has succeeded."""
        for seconds in attempts_s:
            self.records.transaction_began()
            self.now += seconds
        self.records.stepped(CURSOR, 1, 9)

    def recorded(self, event: str) -> list[dict[str, Any]]:
        self.records.flush()
        return [record for record in read_journal(self._path) if record["event"] == event]


@pytest.fixture
def clocked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Clocked]:
    clocked = Clocked(tmp_path, monkeypatch)
    yield clocked
    clocked.journal.close()


def test_journal_of_a_long_launch_grows_by_fewer_lines_than_steps(clocked: Clocked) -> None:
    hour = 36_000
    for _ in range(hour):
        clocked.step(0.1)

    steps = clocked.recorded("step")
    assert sum(step.get("steps", 1) for step in steps) == hour
    early = [step for step in steps if step["now"] <= 1000.0 + 300.0]
    late = steps[len(early) :]
    assert len(early) == pytest.approx(3000, abs=10), "five minutes have a line for each step"
    assert len(late) < (hour - len(early)) / 10


def test_longest_step_is_told_without_the_attempts_that_failed(clocked: Clocked) -> None:
    for attempts_s in [(0.5,), (60.0, 2.0), (1.0,)]:
        clocked.step(*attempts_s)

    assert clocked.records.longest_step_s == 2.0
    assert [step["seconds"] for step in clocked.recorded("step")] == [0.5, 2.0, 1.0]


def test_recovery_is_timed_from_the_moment_at_which_the_death_was_seen(clocked: Clocked) -> None:
    before = World(1, (WorkerId(0), WorkerId(1)), 2)
    times = RepairTimes(1000.0, 1000.25, 1000.5, 1001.0)
    clocked.records.world_changed(before, times, attempts=3)
    clocked.now = 1002.0
    clocked.records.adopted()
    clocked.step(2.0)

    (recovery,) = clocked.recorded("recovery")
    phases = ("revoked_ms", "shrunk_ms", "agreed_ms", "adopted_ms", "next_step_ms")
    assert [recovery[phase] for phase in phases] == [250.0, 500.0, 1000.0, 2000.0, 4000.0]
    assert (recovery["lost"], recovery["survivors"], recovery["attempts"]) == ([1], [0], 3)
