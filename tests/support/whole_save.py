"""A save without workers: the state of one process, as a checkpoint of any number of shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensors, specs_of


def save(
    store: CheckpointStore,
    state: Tensors,
    *,
    header: Header,
    writers: int = 1,
    cursor: Mapping[str, object] | None = None,
    numerics: Mapping[str, object] | None = None,
) -> Path:
    """Save ``state`` as ``writers`` shards and commit it; returns the checkpoint's directory.

    All in this process, one shard after the other.
    Raises ``CheckpointError`` if the checkpoint is not durable; then nothing of it is left.
    """
    layout = ShardLayout(specs_of(state), writers)
    staging = store.staging(header.step, header.generation, store.next_attempt(header))
    try:
        records = [staging.write_shard(state, layout, writer, header) for writer in range(writers)]
        manifest = Manifest.assemble(
            layout, records, header=header, cursor=cursor or {}, numerics=numerics or {}
        )
        return staging.commit(manifest)
    except CheckpointError:
        staging.abandon()
        raise
