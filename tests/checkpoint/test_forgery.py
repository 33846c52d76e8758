"""An attacker who can write to the directory but has no key: only saved bytes are accepted."""

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

from holdfast.checkpoint.errors import (
    CheckpointInvalid,
    ManifestInvalid,
)
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.names import shard_name, step_name
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.signature import Signature
from holdfast.checkpoint.store import CheckpointStore, save


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
