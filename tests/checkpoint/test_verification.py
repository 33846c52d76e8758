from __future__ import annotations

from pathlib import Path

import pytest
from holders import RUN_ID, STEP, Copies, flip, manifest, shard

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore


@pytest.fixture
def here(tmp_path: Path) -> CheckpointStore:
    return Copies.make(tmp_path).here


def test_whole_step_is_valid_and_every_tensor_is_counted(here: CheckpointStore) -> None:
    counts: list[int] = []
    described = here.scan(STEP).manifest()

    verdict = verify_step(here, STEP, run_id=RUN_ID, progress=counts.append)

    assert verdict.is_valid
    assert verdict.nbytes == described.nbytes
    assert sum(counts) == sum(spec.nbytes for spec in described.specs)


def test_flipped_bit_is_named(here: CheckpointStore) -> None:
    flip(shard(here, 1), 4096)

    verdict = verify_step(here, STEP)

    assert not verdict.is_valid
    assert verdict.reason is not None
    assert "in shard 1 have a wrong digest" in verdict.reason


def test_damaged_manifest_is_named(here: CheckpointStore) -> None:
    flip(manifest(here), 50)

    assert "its sha256 does not match" in str(verify_step(here, STEP).reason)


def test_step_of_another_run_is_not_valid(here: CheckpointStore) -> None:
    assert "belongs to run" in str(verify_step(here, STEP, run_id="other").reason)
