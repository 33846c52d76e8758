from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from configs import without_faults, worker_config

from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.store.save import save
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.read_marks import read_back
from holdfast.checkpoint.upkeep.retention import Retention
from holdfast.recovery.schedule import FailureHistory
from holdfast.runtime.exchange.local_communicator import LocalCommunicator
from holdfast.runtime.run.journal import Record, read_journal
from holdfast.runtime.saving.checkpoint_care import Upkeep
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.worker.context import WorkerContext, journal_of


class Committer:
    """A process that commits, with its upkeep, under a clock that the test moves."""

    def __init__(self, run_dir: Path, patch: pytest.MonkeyPatch, **config: Any) -> None:
        run_dir.mkdir()
        self.now = 1000.0
        patch.setattr("holdfast.runtime.saving.checkpoint_care.time.monotonic", lambda: self.now)
        # A priority that was lowered stays so; the reader's is that of a thread of its own.
        self.priorities: list[int] = []
        patch.setattr(
            "holdfast.runtime.saving.checkpoint_care.os.setpriority",
            lambda which, who, priority: self.priorities.append(priority),
        )
        self.store = CheckpointStore(run_dir)
        self.told: list[dict[str, object]] = []
        self.submitted: list[Callable[[], None]] = []
        self._run_dir = run_dir
        self._history = config.pop("history", FailureHistory())
        self._changed = config
        self._upkeep = Upkeep(self._context(), self.store, Retention(2), self.submitted.append)

    def commit(self, step: int) -> None:
        save(self.store, {"a": np.full(1000, step)}, header=Header("r", 1, step))
        self._upkeep.committed(step, 1)

    def scrub(self) -> None:
        """Wait for the reader, and do what it has submitted to this thread."""
        reader: Any = self._upkeep._reader
        reader.join()
        while self.submitted:
            self.submitted.pop(0)()

    def journal(self, event: str) -> list[Record]:
        records = read_journal(self._run_dir / "journal.jsonl")
        return [record for record in records if record["event"] == event]

    def _context(self) -> WorkerContext:
        config = worker_config(run_dir=self._run_dir, generation=7, **self._changed)
        config = dataclasses.replace(config, history=self._history)
        return WorkerContext(
            config,
            LocalCommunicator(),
            journal_of(config),
            HeartbeatPage.create(),
            without_faults(config),
            self.told.append,
        )


@pytest.fixture
def committer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Committer:
    return Committer(tmp_path / "run", monkeypatch)


def damage(store: CheckpointStore, step: int) -> None:
    shard = next((store.directory / f"step-{step:012d}").glob("*.h5"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def test_commit_prunes(committer: Committer) -> None:
    for step in (10, 20, 30):
        committer.commit(step)

    assert committer.store.steps() == (30, 20)
    assert committer.journal("prune_failed") == []


def test_damage_that_stops_the_pruning_is_recorded(committer: Committer) -> None:
    committer.commit(10)
    committer.commit(20)
    damage(committer.store, 20)
    save(committer.store, {"a": np.full(1000, 30)}, header=Header("r", 1, 30))
    damage(committer.store, 30)
    committer._upkeep.committed(30, 1)

    assert committer.store.steps() == (30, 20, 10)
    reasons = [record["reason"] for record in committer.journal("prune_failed")]
    assert [reason.split(":")[0] for reason in reasons] == [
        "step 30 does not verify, so it replaces no older step",
    ]


def test_step_that_a_restore_has_rejected_replaces_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = FailureHistory(rejected=(20,))
    committer = Committer(tmp_path / "run", monkeypatch, history=history)
    for step in (10, 20, 30):
        save(committer.store, {"a": np.full(1000, step)}, header=Header("r", 1, step))
    damage(committer.store, 20)

    committer.commit(40)
    assert committer.store.steps() == (40, 30)


def test_rejected_step_does_not_count_until_it_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = FailureHistory(rejected=(20,))
    committer = Committer(tmp_path / "run", monkeypatch, history=history)
    for step in (10, 20):
        save(committer.store, {"a": np.full(1000, step)}, header=Header("r", 1, step))
    damage(committer.store, 20)

    committer.commit(30)
    assert committer.store.steps() == (30, 20, 10)

    shutil.rmtree(committer.store.directory / "step-000000000020")
    committer.commit(20)
    assert committer.store.steps() == (30, 20)


def test_old_step_is_read_once_an_hour(committer: Committer) -> None:
    committer.commit(10)
    committer.now += 3599
    committer.commit(20)
    assert committer._upkeep._reader is None

    committer.now += 1
    committer.commit(20)
    committer.scrub()

    assert [record["step"] for record in committer.journal("scrubbed")] == [10]
    assert committer.priorities == [19]
    assert committer.told == []


def test_damaged_step_is_told_and_moved(committer: Committer) -> None:
    committer.commit(10)
    committer.commit(20)
    damage(committer.store, 10)
    committer.now += 3600
    committer.commit(20)
    committer.scrub()

    (record,) = committer.journal("scrub_failed")
    assert (record["step"], record["moved_to"]) == (10, ".bad-000000000010-g7-a1")
    assert committer.store.steps() == (20,)
    (notice,) = committer.told
    assert notice["kind"] == "notice"
    assert "step 10 does not verify any more" in str(notice["text"])


def test_damaged_step_is_mended_from_another_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "mirror"
    committer = Committer(tmp_path / "run", monkeypatch, repair_from=str(mirror))
    committer.commit(10)
    committer.commit(20)
    shutil.copytree(tmp_path / "run", mirror)
    damage(committer.store, 10)
    committer.now += 3600
    committer.commit(20)
    committer.scrub()

    (found,), (repaired,) = committer.journal("scrub_failed"), committer.journal("mended")
    assert (found["step"], found["mended"]) == (10, True)
    assert (repaired["step"], repaired["taken"]) == (10, 1)
    assert found["moved_to"] == repaired["bad_name"] == ".bad-000000000010-g1-a1"
    assert committer.store.steps() == (20, 10)
    read_back(committer.store, 10)


@pytest.mark.parametrize(("every_s", "is_read"), [(0.0, False), (30.0, True)])
def test_interval_is_the_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every_s: float, *, is_read: bool
) -> None:
    committer = Committer(tmp_path / "run", monkeypatch, scrub_every_s=every_s)
    committer.commit(10)
    committer.now += 30
    committer.commit(20)

    assert (committer._upkeep._reader is not None) == is_read
    if is_read:
        committer.scrub()
