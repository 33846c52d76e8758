"""Steps of small states, a copy of one, and ways to damage it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor

STEP = 40
WRITERS = 3
RUN_ID = "4f0c2d"


def small_state(seed: int = 0) -> dict[str, Tensor]:
    random = np.random.default_rng(seed)
    return {
        "bias": random.normal(size=90).astype(np.float16),
        "flag": np.array(True),
        "kernel": random.normal(size=(61, 90)).astype(np.float32),
        "steps": np.arange(700),
    }


@dataclass(frozen=True)
class Copies:
    """A run directory and a copy of it, each with one checkpoint."""

    here: CheckpointStore
    there: CheckpointStore

    @staticmethod
    def make(folder: Path) -> Copies:
        here = CheckpointStore(folder / "here")
        save(here, small_state(), header=Header(RUN_ID, 2, STEP), writers=WRITERS)
        shutil.copytree(folder / "here", folder / "there")
        return Copies(here, CheckpointStore(folder / "there"))


def shard(store: CheckpointStore, index: int) -> Path:
    return store.directory / step_name(STEP) / f"shard-{index:05d}-of-{WRITERS:05d}.h5"


def manifest(store: CheckpointStore) -> Path:
    return store.directory / step_name(STEP) / "MANIFEST.json"


def flip(path: Path, offset: int) -> None:
    """Flip a bit of the byte at an offset; a negative one counts from the end."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 4
    path.write_bytes(data)


def fill(store: CheckpointStore, *steps: int, run_id: str = "run") -> None:
    """Save a state of one tensor as each of the steps."""
    for step in steps:
        save(store, {"a": np.full(3, step)}, header=Header(run_id, 1, step))


def damage(store: CheckpointStore, step: int) -> None:
    """Flip a bit of the first shard of a step."""
    flip(min((store.directory / step_name(step)).glob("*.h5")), -1)
