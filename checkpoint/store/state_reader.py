"""A state that is restored in parts: each reader verifies some shards, and all get the whole.

Nothing of it may be used before some reader has verified each shard.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from holdfast.checkpoint.errors import CheckpointInvalid, CheckpointUnreadable, StateUnsupported
from holdfast.checkpoint.format.entries import PieceEntry, Placed, TensorEntry
from holdfast.checkpoint.format.layout import TensorSpec
from holdfast.checkpoint.format.manifest import Manifest, pieces_by_shard
from holdfast.checkpoint.format.tensor import Tensor, empty_tensor
from holdfast.checkpoint.store.scan import Scan
from holdfast.checkpoint.store.store import CheckpointStore


class StateReader:
    """One reader of one committed step."""

    def __init__(self, store: CheckpointStore, step: int, run_id: str | None = None) -> None:
        """Read the manifest and verify it.

        Raises ``CheckpointInvalid`` if it does not verify, or if it belongs to
        another run than ``run_id``.
        """
        self._scan: Scan = store.scan(step)
        self.manifest: Manifest = self._scan.manifest()
        self.manifest.refuse_other_run(run_id)
        self.state: dict[str, Tensor] = {}
        self._bytes: dict[str, memoryview] = {}
        self._placed: list[list[Placed]] = []

    def allocate(self) -> None:
        """Make room for the state; it is never larger than the shards on the disk."""
        self.state = {spec.name: _empty(self.manifest.step, spec) for spec in self.manifest.specs}
        self._bytes = {name: _writable_bytes(tensor) for name, tensor in self.state.items()}

    def read(self, shards: Iterable[int]) -> None:
        """Read these shards into the state and verify them.

        Raises ``CheckpointInvalid`` if a single byte of them does not verify.
        """
        self._scan.read_shards(self.manifest, shards, self._target)

    def contents(self, shard: int) -> list[memoryview]:
        """Return the parts of the state that are a shard's pieces, to send or to receive them."""
        if not self._placed:  # once: a state has thousands of tensors, and many shards
            self._placed = pieces_by_shard(self.manifest)
        return [self._target(*placed) for placed in self._placed[shard]]

    def _target(self, tensor: TensorEntry, piece: PieceEntry) -> memoryview:
        begin = piece.start * tensor.spec.itemsize
        return self._bytes[tensor.spec.name][begin : begin + piece.bytes]


def _empty(step: int, spec: TensorSpec) -> Tensor:
    shown = f"tensor {spec.name!r} {spec.dtype}{list(spec.shape)}"
    try:
        return empty_tensor(spec.dtype, spec.shape)
    except MemoryError as error:
        raise CheckpointUnreadable.for_memory(step, shown) from error
    except (StateUnsupported, ValueError) as error:
        raise CheckpointInvalid(step, f"{shown} cannot be made: {error}") from error


def _writable_bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(np.uint8).data
