"""A save without workers: the state of one process, as a checkpoint of any number of shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.manifest import Header, Manifest
from holdfast.checkpoint.store import CheckpointStore, Staging
from holdfast.checkpoint.tensor import ShardLayout, Tensors, specs_of


def stage(
    store: CheckpointStore,
    state: Tensors,
    *,
    header: Header,
    writers: int = 1,
    cursor: Mapping[str, object] | None = None,
    numerics: Mapping[str, object] | None = None,
) -> tuple[Staging, Manifest]:
    """Write ``state`` as ``writers`` shards, one after the other; return what can be committed."""
    layout = ShardLayout(specs_of(state), writers)
    staging = store.staging(header.step, header.generation, store.next_attempt(header))
    try:
        records = [staging.write_shard(state, layout, writer, header) for writer in range(writers)]
    except CheckpointError:
        staging.abandon()
        raise
    manifest = Manifest.assemble(
        layout, records, header=header, cursor=cursor or {}, numerics=numerics or {}
    )
    return staging, manifest


def save(store: CheckpointStore, state: Tensors, **terms: Any) -> Path:
    """Stage ``state`` and commit it; returns the checkpoint's directory.

    Raises ``CheckpointError`` if the checkpoint is not durable; then nothing of it is left.
    """
    staging, manifest = stage(store, state, **terms)
    try:
        return staging.commit(manifest)
    except CheckpointError:
        staging.abandon()
        raise


def is_same(left: Tensors, right: Tensors) -> bool:
    """Return whether two states have the same names, dtypes, shapes and bits."""
    return left.keys() == right.keys() and all(
        (left[name].dtype, left[name].shape, left[name].tobytes())
        == (right[name].dtype, right[name].shape, right[name].tobytes())
        for name in left
    )
