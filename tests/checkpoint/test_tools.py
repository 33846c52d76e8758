"""The tools of the HDF5 distribution read shards as the ordinary files that they are."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor

pytestmark = pytest.mark.skipif(
    shutil.which("h5ls") is None or shutil.which("h5dump") is None,
    reason="h5ls and h5dump are not installed (Debian: hdf5-tools)",
)


def run(*command: str) -> str:
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stderr == ""
    return found.stdout


@pytest.fixture
def shard(store: CheckpointStore, state_of: Callable[[int], dict[str, Tensor]]) -> Path:
    state = state_of(1) | {"plain/kernel": np.arange(12, dtype=np.float32).reshape(3, 4) / 4}
    directory = save(store, state, header=Header("run", 7, 30))
    (path,) = directory.glob("*.h5")
    return path


def test_h5ls_lists_every_tensor(shard: Path, state_of: Callable[[int], dict[str, Tensor]]) -> None:
    listing = run("h5ls", "-r", str(shard))

    assert listing.count(" Dataset ") == len(state_of(1)) + 2  # ours, and the mark
    assert "/plain/kernel            Dataset {3, 4}" in listing
    assert "/%save" in listing


def test_h5dump_shows_the_values_and_where_they_belong(shard: Path) -> None:
    dump = run("h5dump", "-d", "/plain/kernel", str(shard))

    assert "(0,0): 0, 0.25, 0.5, 0.75," in dump
    assert "(2,0): 2, 2.25, 2.5, 2.75" in dump
    assert "H5T_IEEE_F32LE" in dump
    for attribute in ("name", "dtype", "shape", "start", "stop"):
        assert f'ATTRIBUTE "{attribute}"' in dump


def test_h5dump_shows_which_save_a_shard_belongs_to(shard: Path) -> None:
    dump = run("h5dump", "-d", "/%save", str(shard))

    assert "(0): 7, 30" in dump
