"""Restoring a state, whole or not at all, from the newest step whose every byte verifies."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.checkpoint.errors import CheckpointError, CheckpointInvalid, CheckpointUnreadable
from holdfast.checkpoint.format.layout import TensorSpec
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.tensor import Tensor
from holdfast.checkpoint.store.state_reader import StateReader
from holdfast.checkpoint.store.store import CheckpointStore

_MOST_DIFFERENCES = 5


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
        except CheckpointInvalid as error:
            is_unread = isinstance(error, CheckpointUnreadable)
            rejections.append(Rejection(step, error.reason, is_unread))
        except CheckpointError as error:
            rejections.append(Rejection(step, str(error)))
    return None, tuple(rejections)


def compare_specs(expected: Iterable[TensorSpec], found: Iterable[TensorSpec]) -> str | None:
    """Return one line on missing, extra and different tensors in ``found``, None if they agree."""
    wanted = {spec.name: spec for spec in expected}
    given = {spec.name: spec for spec in found}
    differences = [
        *(f"missing {_describe(wanted[name])}" for name in sorted(wanted.keys() - given.keys())),
        *(f"extra {_describe(given[name])}" for name in sorted(given.keys() - wanted.keys())),
        *(
            f"{_describe(wanted[name])} is {_describe(given[name])} there"
            for name in sorted(wanted.keys() & given.keys())
            if wanted[name] != given[name]
        ),
    ]
    shown = differences[:_MOST_DIFFERENCES]
    if len(differences) > len(shown):
        shown.append(f"and {len(differences) - len(shown)} more")
    return "; ".join(shown) or None


def _describe(spec: TensorSpec) -> str:
    return f"{spec.name!r} {spec.dtype}{list(spec.shape)}"
