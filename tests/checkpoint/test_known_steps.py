"""A plan of retention reads the manifest of each step once, and no shard."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from recording import Recording

from holdfast.checkpoint.known_steps import KnownStep, KnownSteps, OwnSteps
from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.names import MANIFEST_NAME, step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save


@pytest.fixture
def files(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def known(files: Recording, tmp_path: Path) -> KnownSteps:
    store = CheckpointStore(tmp_path, files)
    for step in (10, 20):
        measured = EpochMetrics.join(1, 20, {"loss": 0.5}, {})
        header = Header("run", 1, step)
        save(store, {"weights": np.arange(900)}, header=header, cursor=measured.into({}), writers=3)
    files.opened.clear()
    return KnownSteps(OwnSteps(store))


def shards(tmp_path: Path, step: int) -> list[Path]:
    return sorted((tmp_path / "checkpoints" / step_name(step)).glob("*.h5"))


def test_metrics_and_sizes_come_from_the_manifests_alone(
    known: KnownSteps, files: Recording, tmp_path: Path
) -> None:
    found = known.newest_first(are_read=True)

    sizes = [sum(path.stat().st_size for path in shards(tmp_path, step)) for step in (20, 10)]
    assert found == (KnownStep(20, {"loss": 0.5}, sizes[0]), KnownStep(10, {}, sizes[1]))
    assert files.opened == {MANIFEST_NAME}


def test_manifest_is_read_once(known: KnownSteps, files: Recording) -> None:
    known.newest_first(are_read=True)
    files.opened.clear()

    known.newest_first(are_read=True)

    assert files.opened == set()


def test_nothing_is_read_where_nothing_is_asked(known: KnownSteps, files: Recording) -> None:
    assert known.newest_first(are_read=False) == (KnownStep(20), KnownStep(10))
    assert files.opened == set()


def test_step_without_a_manifest_has_the_size_of_its_files(
    known: KnownSteps, tmp_path: Path
) -> None:
    """It may be the best, and its manifest may be readable the next time."""
    manifest = tmp_path / "checkpoints" / step_name(10) / MANIFEST_NAME
    os.rename(manifest, tmp_path / "away")
    size = sum(path.stat().st_size for path in shards(tmp_path, 10))

    lost = known.newest_first(are_read=True)[1]
    os.rename(tmp_path / "away", manifest)
    again = known.newest_first(are_read=True)[1]

    assert (lost, again) == (KnownStep(10, None, size), KnownStep(10, {}, size))
