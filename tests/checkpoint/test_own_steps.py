"""A step of another run is neither counted nor removed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.known_steps import Owner, OwnSteps, ReadMarks
from holdfast.checkpoint.names import MANIFEST_NAME, step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Best, Pruner, Retention, Wanted, prune
from holdfast.checkpoint.scrub import Scrubber
from holdfast.checkpoint.signature import SigningKey
from holdfast.checkpoint.store import CheckpointStore, save

MINE, OTHER = "a" * 16, "b" * 16


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def fill(store: CheckpointStore, run_id: str, *steps: int) -> None:
    for step in steps:
        save(store, {"a": np.full(3, step)}, header=Header(run_id, 1, step))


def rot_manifest(store: CheckpointStore, step: int) -> None:
    (store.directory / step_name(step) / MANIFEST_NAME).write_bytes(b"{}")


def rot_shard(store: CheckpointStore, step: int) -> None:
    shard = next((store.directory / step_name(step)).glob("*.h5"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)


@pytest.mark.parametrize("retention", [Retention(2), Retention(2, (Wanted(best=Best("loss")),))])
def test_steps_of_another_run_push_no_own_step_out(
    store: CheckpointStore, retention: Retention
) -> None:
    """Two jobs have met in one directory, and the other one is further."""
    fill(store, MINE, 10, 20, 30)
    fill(store, OTHER, 5, 1100, 1200, 1300)

    reasons = prune(OwnSteps(store, MINE), retention)

    assert store.steps() == (1300, 1200, 1100, 30, 20, 5)
    assert reasons == tuple(
        f"step {step} is neither counted nor removed: it belongs to run {OTHER}, not to {MINE}"
        for step in (1300, 1200, 1100, 5)
    )


def test_step_of_a_damaged_manifest_neither_counts_nor_goes(store: CheckpointStore) -> None:
    """Nobody can tell whether it is sound, and whose it is."""
    fill(store, MINE, 10, 20, 30, 40)
    rot_manifest(store, 10)
    rot_manifest(store, 30)

    prune(OwnSteps(store, MINE), Retention(2))

    assert store.steps() == (40, 30, 20, 10)
    fill(store, MINE, 50)
    prune(OwnSteps(store, MINE), Retention(2))
    assert store.steps() == (50, 40, 30, 10)


def test_step_of_another_run_is_told_once(store: CheckpointStore) -> None:
    fill(store, MINE, 10)
    fill(store, OTHER, 1100)
    pruner = Pruner(OwnSteps(store, MINE), Retention(2), ReadMarks())

    assert [len(pruner.prune(now)) for now in (1.0, 2.0, 3.0)] == [1, 0, 0]


def test_step_that_is_saved_again_may_have_become_an_own_one(store: CheckpointStore) -> None:
    fill(store, OTHER, 10)
    own = OwnSteps(store, MINE)
    assert own.owner_of(10) is Owner.OTHER
    rot_shard(store, 10)
    fill(store, MINE, 10)

    own.forget(10)

    assert own.newest_first() == (10,)


def test_step_that_is_known_to_be_own_is_not_read_for_it(store: CheckpointStore) -> None:
    fill(store, MINE, 10)
    rot_manifest(store, 10)
    own = OwnSteps(store, MINE)

    own.mark_own(10)

    assert own.owner_of(10) is Owner.RUN


def test_step_of_an_unreadable_manifest_is_looked_at_again(store: CheckpointStore) -> None:
    fill(store, MINE, 10)
    own = OwnSteps(store, MINE)
    manifest = store.directory / step_name(10) / MANIFEST_NAME
    content = manifest.read_bytes()
    rot_manifest(store, 10)

    assert own.owner_of(10) is Owner.UNKNOWN
    assert own.newest_first() == (10,)
    manifest.write_bytes(content)
    assert own.owner_of(10) is Owner.RUN


def test_with_a_key_a_step_that_it_has_not_signed_is_another_run_s(tmp_path: Path) -> None:
    fill(CheckpointStore(tmp_path), MINE, 40, 50, 60)
    store = CheckpointStore(tmp_path, key=SigningKey(bytes(range(32))))
    fill(store, MINE, 10, 20, 30)

    prune(OwnSteps(store, MINE), Retention(2))

    assert store.steps() == (60, 50, 40, 30, 20)


def test_without_a_run_every_step_is_an_own_one(store: CheckpointStore) -> None:
    fill(store, MINE, 10)
    fill(store, OTHER, 20, 30)

    assert prune(OwnSteps(store), Retention(2)) == ()
    assert store.steps() == (30, 20)


def test_scrub_relies_on_no_step_of_another_run(store: CheckpointStore) -> None:
    """The only own step is damaged: it keeps its name, since nothing else could be restored."""
    fill(store, MINE, 10)
    fill(store, OTHER, 20)
    rot_shard(store, 10)

    failure = Scrubber(OwnSteps(store, MINE), ReadMarks(), generation=2).run_one(1.0)

    assert failure is not None
    assert failure.moved_to is None
    assert store.steps() == (20, 10)


def test_scrub_moves_no_step_of_another_run(store: CheckpointStore) -> None:
    fill(store, OTHER, 10)
    fill(store, MINE, 20)
    rot_shard(store, 10)
    scrubber = Scrubber(OwnSteps(store, MINE), ReadMarks(), generation=2)

    failures = [scrubber.run_one(now) for now in (1.0, 2.0)]

    assert failures == [None, None]
    assert store.steps() == (20, 10)
