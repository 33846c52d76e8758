"""Restoring a state, whole or not at all, from the newest step whose every byte verifies.

Several readers may share the work: each verifies some shards, and all get the whole.
Nothing of a state may be used before some reader has verified each shard.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from holdfast.checkpoint.errors import CheckpointError, CheckpointUnreadable
from holdfast.checkpoint.manifest import Manifest, PieceEntry
from holdfast.checkpoint.scan import describe_spec, make_tensor
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor, TensorSpec

_MOST_DIFFERENCES = 5
_NONE: Mapping[int, memoryview] = {}


@dataclass(frozen=True, slots=True)
class Restored:
    """A verified state, in arrays of its own, and the manifest that it came with."""

    state: dict[str, Tensor]
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Rejection:
    """A committed step that was not used, and why."""

    step: int
    reason: str
    is_unread: bool = False
    """Whether it could not be read just now, and may be whole."""


def restore(store: CheckpointStore, step: int, *, run_id: str | None = None) -> Restored:
    """Return the whole state of a committed step; any number of writers may have saved it.

    Raises ``CheckpointInvalid`` if a single byte of it does not verify, or if it
    belongs to another run than ``run_id``.
    """
    reader = StateReader(store, step, run_id)
    reader.allocate()
    reader.read(range(reader.manifest.writers))
    return Restored(reader.state, reader.manifest)


def restore_newest(
    store: CheckpointStore, *, run_id: str | None = None
) -> tuple[Restored | None, tuple[Rejection, ...]]:
    """Return the newest state that verifies, None if none does, and why newer steps were not used.

    Raises ``StorageFailed`` only if the store's directory cannot be listed.
    """
    rejections: list[Rejection] = []
    for step in store.steps():
        try:
            return restore(store, step, run_id=run_id), tuple(rejections)
        except CheckpointError as error:
            is_unread = isinstance(error, CheckpointUnreadable)
            rejections.append(Rejection(step, error.reason, is_unread))
    return None, tuple(rejections)


class StateReader:
    """One reader of one committed step."""

    def __init__(self, store: CheckpointStore, step: int, run_id: str | None = None) -> None:
        """Read and verify the manifest.

        Raises ``CheckpointInvalid`` if it does not verify, or if it belongs to
        another run than ``run_id``.
        """
        self._scan = store.scan(step)
        self.manifest = self._scan.manifest()
        self.manifest.refuse_other_run(run_id)
        self.state: dict[str, Tensor] = {}
        self._bytes: dict[str, memoryview] = {}

    def allocate(self) -> None:
        """Make room for the state; it is never larger than the shards on the disk."""
        self.state = {
            spec.name: make_tensor(self.manifest.step, spec) for spec in self.manifest.specs
        }
        self._bytes = {
            name: tensor.reshape(-1).view(np.uint8).data for name, tensor in self.state.items()
        }

    def read(self, shards: Iterable[int], images: Mapping[int, memoryview] = _NONE) -> None:
        """Read these shards into the state and verify them; ``images`` are files in memory.

        Raises ``CheckpointInvalid`` if a single byte of them does not verify.
        """
        self._scan.read_shards(self.manifest, shards, self._target, images=images)

    def contents(self, shard: int) -> list[memoryview]:
        """Return the parts of the state that are a shard's pieces, to send or to receive them."""
        return [self._target(*placed) for placed in self.manifest.shards[shard].pieces]

    def _target(self, spec: TensorSpec, piece: PieceEntry) -> memoryview:
        begin = piece.start * spec.itemsize
        return self._bytes[spec.name][begin : begin + piece.bytes]


def compare_specs(expected: Iterable[TensorSpec], found: Iterable[TensorSpec]) -> str | None:
    """Return one line on missing, extra and different tensors in ``found``, None if they agree."""
    wanted = {spec.name: spec for spec in expected}
    given = {spec.name: spec for spec in found}
    differences = [
        *(
            f"missing {describe_spec(wanted[name])}"
            for name in sorted(wanted.keys() - given.keys())
        ),
        *(f"extra {describe_spec(given[name])}" for name in sorted(given.keys() - wanted.keys())),
        *(
            f"{describe_spec(wanted[name])} is {describe_spec(given[name])} there"
            for name in sorted(wanted.keys() & given.keys())
            if wanted[name] != given[name]
        ),
    ]
    shown = differences[:_MOST_DIFFERENCES]
    if len(differences) > len(shown):
        shown.append(f"and {len(differences) - len(shown)} more")
    return "; ".join(shown) or None
