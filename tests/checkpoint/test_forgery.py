"""What an attacker without the key tries, and a store that trusts its key alone."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from keys import (
    CURSOR,
    KEY,
    OTHER_KEY,
    STATE,
    at,
    leaves,
    manifest_path,
    resealed,
    signed_store,
)

from holdfast.checkpoint.digest import DigestKind
from holdfast.checkpoint.errors import (
    CheckpointInvalid,
    CommitRefused,
    ManifestInvalid,
    MendImpossible,
)
from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import shard_name, step_name
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import Holders, mend_step, verify_step
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.signature import Signature, SigningKey
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import ShardLayout, specs_of


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return signed_store(tmp_path / "run")


def reason_of(store: CheckpointStore, step: int = 40) -> str:
    verdict = verify_step(store, step, run_id="run")
    assert not verdict.is_valid
    assert verdict.signature is Signature.NONE
    assert verdict.reason is not None
    return verdict.reason


def test_signed_step_is_restored_with_its_key(store: CheckpointStore) -> None:
    restored = restore(store, 40, run_id="run")

    assert all(restored.state[name].tobytes() == STATE[name].tobytes() for name in STATE)
    assert restored.manifest.signed_by == KEY.id
    assert verify_step(store, 40).signature is Signature.VERIFIED


def test_who_has_no_key_reads_it_and_does_not_claim_to_know_who_wrote_it(
    store: CheckpointStore, tmp_path: Path
) -> None:
    stranger = CheckpointStore(tmp_path / "run")

    verdict = verify_step(stranger, 40, run_id="run")

    assert (verdict.is_valid, verdict.signature) == (True, Signature.NOT_CHECKED)
    assert restore(stranger, 40).manifest.tensors == restore(store, 40).manifest.tensors


def test_who_has_no_key_finds_damage_all_the_same(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.directory / step_name(40) / shard_name(1, 2)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)

    assert "wrong digest" in reason_of(CheckpointStore(tmp_path / "run"))


def test_every_digest_of_a_signed_step_is_a_sha256(store: CheckpointStore) -> None:
    document = json.loads(manifest_path(store, 40).read_bytes().splitlines()[0])

    assert (document["version"], document["digest"]) == (2, "sha256")
    digests = [shard["digest"] for shard in document["shards"]]
    digests += [piece["digest"] for tensor in document["tensors"] for piece in tensor["pieces"]]
    assert {len(digest) for digest in digests} == {64}


def test_reader_of_version_1_refuses_a_signed_manifest(store: CheckpointStore) -> None:
    """Its rules: the last 65 bytes are the sha256 of all before them, ``version`` is 1."""
    data = manifest_path(store, 40).read_bytes()
    document = json.loads(data.splitlines()[0])

    assert hashlib.sha256(data[:-65]).hexdigest().encode() + b"\n" != data[-65:]
    assert document["version"] != 1
    assert document["digest"] != "xxh3_128"


def test_step_without_a_signature_is_refused(store: CheckpointStore, tmp_path: Path) -> None:
    save(CheckpointStore(tmp_path / "run"), STATE, header=Header("run", 3, 60))

    assert f"it is not signed, so readers with key {KEY.id} do not trust it" in reason_of(store, 60)
    restored, rejections = restore_newest(store, run_id="run")
    assert restored is not None
    assert restored.manifest.step == 40
    assert [rejection.step for rejection in rejections] == [60]


def test_step_of_another_key_is_refused_by_name(store: CheckpointStore, tmp_path: Path) -> None:
    other = CheckpointStore(tmp_path / "run", key=OTHER_KEY)
    save(other, STATE, header=Header("run", 3, 60))

    assert f"it is signed with key {OTHER_KEY.id}, not with {KEY.id}" in reason_of(store, 60)


def test_signature_over_digests_that_can_be_forged_is_refused(store: CheckpointStore) -> None:
    """The holder of a key has never made one, but a bug could."""
    plain = CheckpointStore(store.directory.parent)
    save(plain, STATE, header=Header("run", 3, 60), writers=2)
    path = manifest_path(store, 60)
    data = path.read_bytes()
    path.write_bytes(data + f"{KEY.id} {KEY.sign(data)}\n".encode())

    assert "its version is 1, but it is signed" in reason_of(store, 60)
    assert "its version is 1, but it is signed" in reason_of(plain, 60)


def changed(value: Any, chance: random.Random) -> Any:
    """Return another value of the same kind."""
    if isinstance(value, str):
        others = sorted(set("0123456789abcdef") - set(value[:1]))
        return chance.choice(others) + value[1:]
    if isinstance(value, (int, float)):
        return value + chance.choice([1, -1, chance.randrange(2, 2**40)])
    return [1] if value == [] else {"x": 1}


def signatures(data: bytes) -> dict[str, Callable[[bytes], bytes]]:
    """Return what an attacker may put below a manifest that was changed."""
    kept = data.splitlines(keepends=True)[2]
    return {
        "kept": lambda _: kept,
        "none": lambda _: b"",
        "own key": lambda new: f"{OTHER_KEY.id} {OTHER_KEY.sign(new)}\n".encode(),
        "own key, the run's name": lambda new: f"{KEY.id} {OTHER_KEY.sign(new)}\n".encode(),
        "rubbish": lambda _: b"signed, yours\n",
        "zeros": lambda _: f"{KEY.id} {'0' * 64}\n".encode(),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("below", ["kept", "none", "own key", "own key, the run's name"])
def test_no_field_of_a_manifest_can_be_changed(
    store: CheckpointStore, below: str, seed: int
) -> None:
    print("seed", seed)
    path = manifest_path(store, 40)
    data = path.read_bytes()
    chance = random.Random(seed)
    document = json.loads(data.splitlines()[0])
    ways = list(leaves(document))
    assert len(ways) > 40

    for way in ways:
        forged = json.loads(data.splitlines()[0])
        at(forged, way[:-1])[way[-1]] = changed(at(document, way), chance)
        assert forged != document, way
        path.write_bytes(resealed(forged, signatures(data)[below](resealed(forged))))
        with pytest.raises(CheckpointInvalid):
            restore(store, 40)


@pytest.mark.parametrize("below", ["kept", "none", "own key", "own key, the run's name", "zeros"])
def test_whole_forgery_with_right_digests_is_refused(
    store: CheckpointStore, tmp_path: Path, below: str
) -> None:
    """Other weights, saved as the run would have saved them, but for the key."""
    data = manifest_path(store, 40).read_bytes()
    shutil.rmtree(store.directory / step_name(40))
    state = STATE | {"kernel": np.zeros((61, 90), np.float32)}
    forger = CheckpointStore(tmp_path / "run", key=OTHER_KEY)
    save(forger, state, header=Header("run", 2, 40), writers=2, cursor=CURSOR)
    assert verify_step(forger, 40, run_id="run").is_valid
    forged = b"".join(manifest_path(store, 40).read_bytes().splitlines(keepends=True)[:2])

    manifest_path(store, 40).write_bytes(forged + signatures(data)[below](forged))

    assert reason_of(store)
    restored, _ = restore_newest(store, run_id="run")
    assert restored is not None
    assert restored.manifest.step == 20


@pytest.mark.parametrize("below", ["rubbish", "zeros", "own key, the run's name", "none"])
def test_manifest_as_it_was_needs_its_own_signature(store: CheckpointStore, below: str) -> None:
    path = manifest_path(store, 40)
    data = path.read_bytes()
    signed = data[: -len(data.splitlines(keepends=True)[2])]

    path.write_bytes(signed + signatures(data)[below](signed))

    assert "step 40" not in reason_of(store)


def test_every_flipped_bit_and_every_cut_of_a_signed_manifest_is_found(
    store: CheckpointStore,
) -> None:
    data = bytearray(manifest_path(store, 40).read_bytes())
    assert Manifest.decode(bytes(data), KEY).step == 40

    for position, bit in itertools.product(range(len(data)), range(8)):
        data[position] ^= 1 << bit
        assert not is_accepted(bytes(data)), (position, bit)
        data[position] ^= 1 << bit
    for length in range(len(data)):
        assert not is_accepted(bytes(data[:length])), length
    assert not is_accepted(bytes(data) + b"\n")
    assert not is_accepted(bytes(data) + bytes(data.splitlines(keepends=True)[2]))


def is_accepted(data: bytes) -> bool:
    try:
        Manifest.decode(data, KEY)
    except ManifestInvalid:
        return False
    return True


@pytest.mark.parametrize("what", [shard_name(0, 2), shard_name(1, 2), "MANIFEST.json"])
@pytest.mark.parametrize("source", ["step", "run", "generation"])
def test_files_of_another_save_of_the_same_key_do_not_fit(
    store: CheckpointStore, tmp_path: Path, source: str, what: str
) -> None:
    """The state is the same everywhere, so all that differs is which save it was."""
    here = store.directory / step_name(40)
    if source == "step":
        there = store.directory / step_name(20)
    elif source == "run":
        there = signed_store(tmp_path / "other", "other").directory / step_name(40)
    else:
        other = CheckpointStore(tmp_path / "other", key=KEY)
        there = save(other, STATE, header=Header("run", 3, 40), writers=2, cursor=CURSOR)
    shutil.copyfile(there / what, here / what)

    assert not verify_step(store, 40, run_id="run").is_valid
    with pytest.raises(CheckpointInvalid):
        restore(store, 40, run_id="run")


def test_whole_step_of_another_run_of_the_same_key_is_refused(
    store: CheckpointStore, tmp_path: Path
) -> None:
    other = signed_store(tmp_path / "other", "other", (60,))
    shutil.copytree(other.directory / step_name(60), store.directory / step_name(60))

    assert "it belongs to run other, not to run" in reason_of(store, 60)


def test_step_under_another_steps_name_is_refused(store: CheckpointStore) -> None:
    shutil.copytree(store.directory / step_name(40), store.directory / step_name(60))

    assert "its manifest is that of step 40" in reason_of(store, 60)


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

    Pruner(OwnSteps(store), Retention(newest=2), ReadMarks()).prune()

    assert set(store.steps()) >= {20, 40}


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
