"""The job that is crashed: its states and its saves."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from holders import flip
from whole_save import save

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.image import lay_out_shard  # also: not loaded where calls are counted
from holdfast.checkpoint.manifest import Header, Manifest
from holdfast.checkpoint.names import shard_name, step_name
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensor, specs_of

RUN_ID = "crash"
WRITERS = 3
KEEP = Retention(2)
GENERATION, NEXT_GENERATION = 1, 2


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """Make a directory, in memory if possible: the disk's speed is not under test."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="holdfast-crash-", dir=place) as name:
        yield Path(name)


def state_of(seed: int, step: int) -> dict[str, Tensor]:
    """Return the state after ``step``: a few tensors, cut by the borders of three shards."""
    random = np.random.default_rng((seed, step))
    return {
        "bias": random.normal(size=90).astype(np.float16),
        "flag": np.array(True),
        "kernel": random.normal(size=(61, 90)).astype(np.float32),
        "step": np.array(step, np.int64),
        "empty": np.zeros((0, 3), np.float32),
    }


def save_step(
    store: CheckpointStore,
    seed: int,
    step: int,
    generation: int = GENERATION,
    run_id: str = RUN_ID,
) -> None:
    """Save a step in one process, as three shards."""
    header = Header(run_id, generation, step)
    save(store, state_of(seed, step), header=header, writers=WRITERS)


def save_images(store: CheckpointStore, seed: int, step: int) -> None:
    """Save a step as a job does: from snapshots in memory, by the process that holds them."""
    state, header = state_of(seed, step), Header(RUN_ID, GENERATION, step)
    layout = ShardLayout(specs_of(state), WRITERS)
    staging = store.staging(step, GENERATION, store.next_attempt(header))
    records = []
    try:
        for writer in range(WRITERS):
            image = lay_out_shard(layout, writer, RUN_ID)
            contents = image.contents(state)
            records.append(image.describe(contents, header))
            buffer = memoryview(b"".join(image.buffers(contents, header)))
            staging.write_image(buffer, records[-1], WRITERS)
        staging.commit(Manifest.assemble(layout, records, header=header, cursor={}, numerics={}))
    except CheckpointError:
        staging.abandon()
        raise


def spoil(store: CheckpointStore, step: int, *, shard: int) -> None:
    """Flip a bit of a committed shard, in the middle of a tensor."""
    path = store.directory / step_name(step) / shard_name(shard, WRITERS)
    flip(path, path.stat().st_size // 2)
