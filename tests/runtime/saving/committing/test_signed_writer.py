"""A run with a key: the writer signs, and without the key it saves nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from host_saves import STEP, Workers, plan_of, saved_steps
from host_writer import Disk, RunningWriter, journal

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.signature import KeyFile, Signature
from holdfast.checkpoint.store import CheckpointStore


def signed_store(tmp_path: Path, key_file: KeyFile) -> CheckpointStore:
    return CheckpointStore(tmp_path / "run", key=key_file.read())


def test_checkpoint_is_signed_and_the_secret_is_never_told(
    signing: Workers, writer: RunningWriter, tmp_path: Path, key_file: KeyFile
) -> None:
    copied = signing.copy_all(signing.ticket(STEP, 1))
    writer.tell(*copied)
    assert writer.answer()["kind"] == "saved"

    verdict = verify_step(signed_store(tmp_path, key_file), STEP)

    assert (verdict.is_valid, verdict.signature) == (True, Signature.VERIFIED)
    assert saved_steps(tmp_path / "run", key_file) == (STEP,)
    told = signing.plan.encode().decode() + json.dumps([part.message for part in copied])
    assert Path(key_file.path).read_bytes().hex() not in told


@pytest.mark.parametrize("lost", ["MANIFEST.json", "shard-00000-of-00002.h5"])
def test_signed_checkpoint_that_is_mended_from_memory_is_signed_again(
    signing: Workers, writer: RunningWriter, tmp_path: Path, key_file: KeyFile, lost: str
) -> None:
    writer.save(signing, STEP, 1)
    store = signed_store(tmp_path, key_file)
    step = store.directory / "step-000000000030"
    before = (step / "MANIFEST.json").read_bytes()
    (step / lost).unlink()

    assert writer.mend(tmp_path / "run", STEP, key_file)["result"]

    assert verify_step(store, STEP).is_valid
    assert (step / "MANIFEST.json").read_bytes() == before
    assert writer.kept() == STEP


def test_manifest_of_a_kept_save_is_told_with_its_signature(
    signing: Workers, writer: RunningWriter, tmp_path: Path, key_file: KeyFile
) -> None:
    writer.save(signing, STEP, 1)
    (manifest,) = (tmp_path / "run").glob("checkpoints/*/MANIFEST.json")

    assert writer.ask("open")["manifest"] == manifest.read_text()


def test_key_that_has_been_replaced_fails_saves_until_it_is_back(
    signing: Workers, writer: RunningWriter, tmp_path: Path, key_file: KeyFile
) -> None:
    key = Path(key_file.path).read_bytes()
    Path(key_file.path).write_bytes(bytes(40))
    writer.use(another_stage := Workers(plan_of(tmp_path / "run", shards=3, key_file=key_file)))

    answer = writer.save(another_stage, STEP, 1)

    assert answer["kind"] == "unsaved"
    assert f"not {key_file.key_id}" in answer["reason"]
    (record,) = journal(tmp_path / "run", "checkpoint_failed")
    assert record["reason"] == answer["reason"]
    assert writer.settle() is None
    Path(key_file.path).write_bytes(key)
    assert writer.save(another_stage, STEP, 2)["kind"] == "saved"
    another_stage.close()


def test_save_of_the_stage_before_is_kept_when_the_key_of_the_next_one_is_gone(
    signing: Workers, writer: RunningWriter, tmp_path: Path, key_file: KeyFile, disk: Disk
) -> None:
    """It cannot become durable any more, and the writer goes on to say so."""
    disk.is_full = True
    writer.save(signing, STEP, 1)
    disk.is_full = False
    Path(key_file.path).write_bytes(bytes(40))
    writer.plan(plan_of(tmp_path / "run", shards=3, key_file=key_file))

    assert writer.settle() is None

    assert (writer.kept(), writer.ask("open")["step"]) == (STEP, None)
    reason = writer.mend(tmp_path / "run", STEP, key_file)["reason"]
    assert f"not {key_file.key_id}" in reason
    reasons = [r["reason"] for r in journal(tmp_path / "run", "checkpoint_failed")]
    assert "ENOSPC" in reasons[0]
    assert f"not {key_file.key_id}" in reasons[1]
