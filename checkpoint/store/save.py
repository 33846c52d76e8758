"""A whole save in one process: all shards, one after the other, and the commit.

A job saves by its host's committer, which writes all shards at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.layout import ShardLayout, specs_of
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.format.tensor import Tensors
from holdfast.checkpoint.store.store import CheckpointStore


def save(
    store: CheckpointStore,
    state: Tensors,
    *,
    header: Header,
    writers: int = 1,
    cursor: Mapping[str, object] | None = None,
) -> Path:
    """Save ``state`` as ``writers`` shards and commit it; returns the checkpoint's directory.

    Raises ``CheckpointError`` if the checkpoint is not durable; then nothing of it is left.
    """
    layout = ShardLayout(specs_of(state), writers)
    staging = store.stage(header.step, header.generation, store.next_attempt(header))
    try:
        records = [staging.write_shard(state, layout, writer, header) for writer in range(writers)]
        manifest = Manifest.assemble(
            layout, records, header=header, cursor=cursor or {}, numerics={}
        )
        return staging.commit(manifest)
    except CheckpointError:
        staging.abandon()
        raise
