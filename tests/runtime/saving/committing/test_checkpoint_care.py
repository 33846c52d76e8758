"""Old steps are pruned, and now and then read again, beside the saves that go on."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from committing_report import Told
from host_saves import plan_of

from holdfast.checkpoint.known_steps import read_back
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.runtime.saving.checkpoint_care import CheckpointCare, Places

BOUND_S = 60.0
IN_RUN = Places(is_local=False, is_run=True)


class Committer:
    """A process that commits, with its care of old steps, under a clock that the test moves."""

    def __init__(self, run_dir: Path, patch: pytest.MonkeyPatch, **terms: Any) -> None:
        run_dir.mkdir(exist_ok=True)
        self.now = 1000.0
        room = "holdfast.runtime.saving.checkpoint_care"
        patch.setattr(f"{room}.time.monotonic", lambda: self.now)
        # A priority that was lowered stays so; the reader's is that of a thread of its own.
        self.priorities: list[int] = []
        patch.setattr(
            f"{room}.os.setpriority",
            lambda which, who, priority: self.priorities.append(priority),
        )
        self.store = CheckpointStore(run_dir)
        self.told = Told()
        usual: dict[str, Any] = {
            "retention": Retention(2),
            "generation": 7,
            "scrub_every_s": 3600.0,
        }
        self.care = CheckpointCare(plan_of(run_dir, **(usual | terms)), self.told)
        self.idle()

    def commit(self, step: int) -> None:
        save(self.store, {"a": np.full(1000, step)}, header=Header("run", 1, step))
        self.care.committed(step, IN_RUN)
        self.idle()

    def idle(self) -> None:
        """Wait until everything that was asked for is done."""
        self.care._thread.submit(lambda: None).result()

    def scrub(self) -> None:
        """Wait for the reader, and for what follows from its reading."""
        reader: Any = self.care._reader
        reader.join()
        self.idle()


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
    assert committer.told.of("prune_failed") == []


def test_space_that_cannot_be_kept_to_is_said_to_the_user_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = Committer(tmp_path / "run", monkeypatch, keep_space="100B")
    for step in (10, 20, 30):
        bounded.commit(step)

    (sentence,) = bounded.told.sentences
    assert re.search(r"take \d+ bytes more than --keep-space allows; give them more", sentence)


def test_damage_that_stops_the_pruning_is_recorded(committer: Committer) -> None:
    committer.commit(10)
    committer.commit(20)
    damage(committer.store, 20)
    save(committer.store, {"a": np.full(1000, 30)}, header=Header("run", 1, 30))
    damage(committer.store, 30)
    committer.care.committed(30, IN_RUN)
    committer.idle()

    assert committer.store.steps() == (30, 20, 10)
    reasons = [record["reason"] for record in committer.told.of("prune_failed")]
    assert [reason.split(":")[0] for reason in reasons] == [
        "step 30 does not verify, so it replaces no older step",
    ]


def test_step_that_a_restore_has_rejected_replaces_no_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer(tmp_path / "run", monkeypatch, unsound=frozenset({20}))
    for step in (10, 20, 30):
        save(committer.store, {"a": np.full(1000, step)}, header=Header("run", 1, step))
    damage(committer.store, 20)

    committer.commit(40)
    assert committer.store.steps() == (40, 30)


def test_rejected_step_does_not_count_until_it_is_saved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = Committer(tmp_path / "run", monkeypatch, unsound=frozenset({20}))
    for step in (10, 20):
        save(committer.store, {"a": np.full(1000, step)}, header=Header("run", 1, step))
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
    assert committer.care._reader is None

    committer.now += 1
    committer.commit(20)
    committer.scrub()

    assert [record["step"] for record in committer.told.of("scrubbed")] == [10]
    assert committer.priorities == [19]
    assert committer.told.sentences == []


def test_damaged_step_is_told_and_moved(committer: Committer) -> None:
    committer.commit(10)
    committer.commit(20)
    damage(committer.store, 10)
    committer.now += 3600
    committer.commit(20)
    committer.scrub()

    (record,) = committer.told.of("scrub_failed")
    assert (record["step"], record["moved_to"]) == (10, ".bad-000000000010-g7-a1")
    assert committer.store.steps() == (20,)
    (notice,) = committer.told.sentences
    assert "step 10 does not verify any more" in notice


def test_damaged_step_is_mended_from_another_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = tmp_path / "mirror"
    committer = Committer(tmp_path / "run", monkeypatch, repair_from=mirror)
    committer.commit(10)
    committer.commit(20)
    shutil.copytree(tmp_path / "run", mirror)
    damage(committer.store, 10)
    committer.now += 3600
    committer.commit(20)
    committer.scrub()

    (found,), (repaired,) = committer.told.of("scrub_failed"), committer.told.of("mended")
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

    assert (committer.care._reader is not None) == is_read
    if is_read:
        committer.scrub()


def test_staging_of_dead_launches_goes_at_once_and_that_of_this_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path / "run")
    (tmp_path / "run").mkdir()
    for generation in (5, 6, 7, 8):
        store.stage(30, generation, 1)

    Committer(tmp_path / "run", monkeypatch)

    assert store.names() == (".tmp-000000000030-g7-a1", ".tmp-000000000030-g8-a1")


def test_steps_that_wait_for_the_care_are_pruned_at_once(
    committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run directory that is slow gets one pruning for all the saves meanwhile."""
    pruned: list[float] = []
    goes_on = threading.Event()
    plain = Pruner.prune

    def prune(pruner: Pruner, now: float) -> tuple[str, ...]:
        pruned.append(now)
        goes_on.wait(BOUND_S)
        return plain(pruner, now)

    monkeypatch.setattr(Pruner, "prune", prune)
    for step in (10, 20, 30, 40):
        save(committer.store, {"a": np.full(1000, step)}, header=Header("run", 7, step))
        committer.care.committed(step, IN_RUN)
    goes_on.set()
    committer.idle()

    assert committer.store.steps() == (40, 30)
    assert len(pruned) < 4


def test_care_that_hangs_is_waited_for_no_longer_than_told(
    committer: Committer, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(Pruner, "prune", lambda pruner, now: goes_on.wait(BOUND_S) and ())
    committer.care.committed(10, IN_RUN)

    committer.care.close(0.01)

    assert not goes_on.is_set()
    goes_on.set()
    for thread in committer.care._thread._threads:
        thread.join(BOUND_S)


def test_care_ends_what_was_asked_for_before_it_closes(
    committer: Committer,
) -> None:
    for step in (10, 20, 30):
        save(committer.store, {"a": np.full(1000, step)}, header=Header("run", 7, step))
        committer.care.committed(step, IN_RUN)

    committer.care.close(BOUND_S)

    assert committer.store.steps() == (30, 20)
