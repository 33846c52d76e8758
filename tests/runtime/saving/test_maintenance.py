"""Old steps are pruned, beside the saves that go on."""

from __future__ import annotations

import functools
import shutil
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from committing_report import StrikeResult
from host_saves import LAUNCH, Workers, begin_run, plan_of

from holdfast.checkpoint.filesystem import LocalFileSystem, PacedFileSystem
from holdfast.checkpoint.names import StagingName, removed_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.runtime.saving import maintenance
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.maintenance import CheckpointMaintenance

BOUND_S = 60.0


class CaringCommitter:
    """A process that commits, with its care of old steps."""

    def __init__(self, run_dir: Path, **terms: Any) -> None:
        begin_run(run_dir)
        self.store = CheckpointStore(run_dir)
        self.told = StrikeResult()
        usual: dict[str, Any] = {"retention": Retention(2), "generation": 7}
        self.maintenance = CheckpointMaintenance(plan_of(run_dir, **(usual | terms)), self.told)
        self.idle()

    def commit(self, step: int) -> None:
        save(self.store, {"a": np.full(1000, step)}, header=Header("run", 1, step))
        self.maintenance.committed(step)
        self.idle()

    def idle(self) -> None:
        """Wait until everything that was asked for is done."""
        self.maintenance._thread.submit(lambda: None).result()


@pytest.fixture
def caring(tmp_path: Path) -> CaringCommitter:
    return CaringCommitter(tmp_path / "run")


def damage(store: CheckpointStore, step: int) -> None:
    shard = next((store.directory / f"step-{step:012d}").glob("*.h5"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


def test_commit_prunes(caring: CaringCommitter) -> None:
    for step in (10, 20, 30):
        caring.commit(step)

    assert caring.store.steps() == (30, 20)
    assert caring.told.of("prune_failed") == []


def test_damage_that_stops_the_pruning_is_recorded(caring: CaringCommitter) -> None:
    caring.commit(10)
    caring.commit(20)
    damage(caring.store, 20)
    save(caring.store, {"a": np.full(1000, 30)}, header=Header("run", 1, 30))
    damage(caring.store, 30)
    caring.maintenance.committed(30)
    caring.idle()

    assert caring.store.steps() == (30, 20, 10)
    reasons = [record["reason"] for record in caring.told.of("prune_failed")]
    assert [reason.split(":")[0] for reason in reasons] == [
        "step 30 does not verify, so it replaces no older step",
    ]


def test_step_that_a_restore_has_rejected_replaces_no_older_one(tmp_path: Path) -> None:
    caring = CaringCommitter(tmp_path / "run", unsound=frozenset({20}))
    for step in (10, 20, 30):
        save(caring.store, {"a": np.full(1000, step)}, header=Header("run", 1, step))
    damage(caring.store, 20)

    caring.commit(40)
    assert caring.store.steps() == (40, 30)


def test_rejected_step_does_not_count_until_it_is_saved_again(tmp_path: Path) -> None:
    caring = CaringCommitter(tmp_path / "run", unsound=frozenset({20}))
    for step in (10, 20):
        save(caring.store, {"a": np.full(1000, step)}, header=Header("run", 1, step))
    damage(caring.store, 20)

    caring.commit(30)
    assert caring.store.steps() == (30, 20, 10)

    shutil.rmtree(caring.store.directory / "step-000000000020")
    caring.commit(20)
    assert caring.store.steps() == (30, 20)


def test_staging_of_dead_launches_goes_at_once_and_that_of_this_one_stays(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "run")
    (tmp_path / "run").mkdir()
    for generation in (5, 6, 7, 8):
        store.staging(30, generation, 1).open()

    CaringCommitter(tmp_path / "run")

    assert store.names() == (".tmp-000000000030-g7-a1", ".tmp-000000000030-g8-a1")


def test_steps_that_wait_for_the_care_are_pruned_at_once(
    caring: CaringCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run directory that is slow gets one pruning for all the saves meanwhile."""
    pruned: list[Pruner] = []
    goes_on = threading.Event()
    plain = Pruner.prune

    def prune(pruner: Pruner) -> tuple[str, ...]:
        pruned.append(pruner)
        goes_on.wait(BOUND_S)
        return plain(pruner)

    monkeypatch.setattr(Pruner, "prune", prune)
    for step in (10, 20, 30, 40):
        save(caring.store, {"a": np.full(1000, step)}, header=Header("run", 7, step))
        caring.maintenance.committed(step)
    goes_on.set()
    caring.idle()

    assert caring.store.steps() == (40, 30)
    assert len(pruned) < 4


def test_care_that_hangs_is_waited_for_no_longer_than_told(
    caring: CaringCommitter, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    monkeypatch.setattr(Pruner, "prune", lambda pruner: goes_on.wait(BOUND_S) and ())
    caring.maintenance.committed(10)

    caring.maintenance.close(0.01)

    assert not goes_on.is_set()
    goes_on.set()
    for thread in caring.maintenance._thread._threads:
        thread.join(BOUND_S)


def test_care_ends_what_was_asked_for_before_it_closes(
    caring: CaringCommitter,
) -> None:
    for step in (10, 20, 30):
        save(caring.store, {"a": np.full(1000, step)}, header=Header("run", 7, step))
        caring.maintenance.committed(step)

    caring.maintenance.close(BOUND_S)

    assert caring.store.steps() == (30, 20)


def test_step_that_is_being_read_back_is_read_no_further_and_nothing_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At this rate a step would take minutes."""
    slow = functools.partial(PacedFileSystem, bytes_per_s=100.0)
    monkeypatch.setattr(maintenance, "PacedFileSystem", slow)
    workers = Workers(plan_of(tmp_path, retention=Retention(2)))
    before = set(threading.enumerate())
    committer = Committer(workers.plan, StrikeResult())
    for step in (1, 2, 3, 4):
        committer.commit(workers.held(step))

    committer.close(0.0)

    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND_S)
        assert not thread.is_alive()
    assert CheckpointStore(tmp_path).steps() == (4, 3, 2, 1)
    workers.close()


def test_care_that_was_given_up_takes_nothing_that_is_staged_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mend may be staged, under the generation of its step."""
    removed = tmp_path / "checkpoints" / removed_name(3)
    removed.mkdir(parents=True)
    (removed / "shard").write_bytes(b"x")
    is_removing, go = threading.Event(), threading.Event()
    plain = LocalFileSystem.unlink

    def unlink(files: LocalFileSystem, path: Path) -> None:
        is_removing.set()
        go.wait(BOUND_S)
        plain(files, path)

    monkeypatch.setattr(LocalFileSystem, "unlink", unlink)
    workers = Workers(plan_of(tmp_path))
    before = set(threading.enumerate())
    committer = Committer(workers.plan, StrikeResult())
    assert is_removing.wait(BOUND_S)

    committer.close(0.0)
    staged = tmp_path / "checkpoints" / str(StagingName(20, LAUNCH - 1, 1))
    staged.mkdir()
    go.set()

    for thread in set(threading.enumerate()) - before:
        thread.join(BOUND_S)
    assert removed.exists(), "the next care completes the removal"
    assert staged.exists()
    workers.close()
