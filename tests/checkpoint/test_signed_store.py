"""A store with a key: what it writes is signed, and what it finds is not trusted without."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from keys import KEY, OTHER_KEY, STATE, manifest_path, signed_store

from holdfast.checkpoint.digest import DigestKind
from holdfast.checkpoint.errors import CommitRefused, MendImpossible
from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import shard_name, step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import Holders, mend_step, verify_step
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.scrub import Scrubber
from holdfast.checkpoint.signature import SigningKey
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import ShardLayout, specs_of


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return signed_store(tmp_path / "run")


def test_forged_step_gives_way_to_the_save_of_that_step(
    store: CheckpointStore, tmp_path: Path
) -> None:
    forger = CheckpointStore(tmp_path / "run")
    save(forger, {"bias": np.zeros(1)}, header=Header("run", 2, 60))

    save(store, STATE, header=Header("run", 2, 60), writers=2)

    assert verify_step(store, 60, run_id="run").is_valid
    assert ".bad-000000000060-g2-a1" in store.names()


def test_forged_steps_remove_nothing_that_was_saved(store: CheckpointStore, tmp_path: Path) -> None:
    """Newer steps that do not verify are no reason to let older ones go."""
    for step in (60, 80, 100):
        save(CheckpointStore(tmp_path / "run"), STATE, header=Header("run", 2, step))

    Pruner(OwnSteps(store), Retention(newest=2), ReadMarks()).prune(1.0)

    assert set(store.steps()) >= {20, 40}


def test_scrub_moves_a_forged_step_aside(store: CheckpointStore, tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path / "run"), STATE, header=Header("run", 2, 10))

    failure = Scrubber(OwnSteps(store), ReadMarks(), generation=4).run_one(1.0)

    assert failure is not None
    assert (failure.step, failure.moved_to) == (10, ".bad-000000000010-g4-a1")


@pytest.mark.parametrize("key", [None, OTHER_KEY])
def test_repair_takes_nothing_from_a_holder_that_was_forged(
    store: CheckpointStore, tmp_path: Path, key: SigningKey | None
) -> None:
    shutil.rmtree(store.directory / step_name(40))
    forger = CheckpointStore(tmp_path / "there", key=key)
    save(forger, STATE, header=Header("run", 2, 40), writers=2)
    there = CheckpointStore(tmp_path / "there", key=KEY)

    with pytest.raises(MendImpossible):
        mend_step(Holders(store, there), 40, run_id="run")

    assert store.steps() == (20,)


@pytest.mark.parametrize("is_moved", [False, True])
@pytest.mark.parametrize("forged_by", [None, OTHER_KEY])
def test_repair_replaces_a_forged_step_by_the_signed_one_of_the_other_holder(
    store: CheckpointStore, tmp_path: Path, forged_by: SigningKey | None, *, is_moved: bool
) -> None:
    shutil.copytree(tmp_path / "run", tmp_path / "there")
    before = manifest_path(store, 40).read_bytes()
    here = store.directory / step_name(40)
    shutil.rmtree(here)
    forger = CheckpointStore(tmp_path / "run", key=forged_by)
    save(forger, {"bias": np.zeros(9)}, header=Header("run", 2, 40))
    if forged_by is not None:
        text = manifest_path(store, 40).read_text()
        manifest_path(store, 40).write_text(text.replace(forged_by.id, KEY.id))
    if is_moved:
        here.rename(here.with_name(".bad-000000000040-g2-a1"))
    there = CheckpointStore(tmp_path / "there", key=KEY)

    mend_step(Holders(store, there), 40, run_id="run")

    assert manifest_path(store, 40).read_bytes() == before
    assert verify_step(store, 40, run_id="run").is_valid


def test_repair_of_a_signed_step_is_signed_as_it_was(
    store: CheckpointStore, tmp_path: Path
) -> None:
    shutil.copytree(tmp_path / "run", tmp_path / "there")
    before = manifest_path(store, 40).read_bytes()
    (store.directory / step_name(40) / shard_name(0, 2)).unlink()
    there = CheckpointStore(tmp_path / "there", key=KEY)

    repaired = mend_step(Holders(store, there), 40, run_id="run")

    assert repaired.faults
    assert manifest_path(store, 40).read_bytes() == before


def test_repair_of_a_signed_step_needs_its_key(store: CheckpointStore, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "run", tmp_path / "there")
    (store.directory / step_name(40) / shard_name(0, 2)).unlink()
    holders = Holders(CheckpointStore(tmp_path / "run"), CheckpointStore(tmp_path / "there"))

    with pytest.raises(
        CommitRefused,
        match="signature not checked, is not written without a key; give the key file",
    ):
        mend_step(holders, 40, run_id="run")

    assert store.steps() == (40, 20)


def test_shards_with_and_without_a_key_do_not_make_one_checkpoint(tmp_path: Path) -> None:
    layout, header = ShardLayout(specs_of(STATE), 2), Header("run", 2, 60)
    records = []
    for writer, key in enumerate((KEY, None)):
        staging = CheckpointStore(tmp_path, key=key).staging(60, 2, 1)
        records.append(staging.write_shard(STATE, layout, writer, header))

    assert [record.kind for record in records] == [DigestKind.SHA256, DigestKind.XXH3_128]
    with pytest.raises(CommitRefused, match="give all workers the same key file"):
        Manifest.assemble(layout, records, header=header, cursor={}, numerics={})


def test_shards_that_were_made_without_a_key_are_not_signed(tmp_path: Path) -> None:
    layout, header = ShardLayout(specs_of(STATE), 1), Header("run", 2, 60)
    record = CheckpointStore(tmp_path).staging(60, 2, 1).write_shard(STATE, layout, 0, header)
    manifest = Manifest.assemble(layout, [record], header=header, cursor={}, numerics={})

    with pytest.raises(
        CommitRefused, match="digests xxh3_128, signature none, is not written with a key"
    ):
        CheckpointStore(tmp_path, key=KEY).staging(60, 2, 1).commit(manifest)


@pytest.mark.parametrize("key", [KEY, None])
def test_key_signs_nothing_that_was_only_said_to_be_signed(
    store: CheckpointStore, tmp_path: Path, key: SigningKey | None
) -> None:
    """Or a repair would make a forged manifest a right one."""
    unchecked = CheckpointStore(tmp_path / "run").scan(40).manifest()

    with pytest.raises(CommitRefused, match="signature not checked, is not written with"):
        unchecked.encode(key)
    assert store.scan(40).manifest().encode(KEY) == manifest_path(store, 40).read_bytes()
