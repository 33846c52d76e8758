"""What a run has left on the disk and nobody will use: saves that were given up or cut short.

It goes first when a save finds the disk full.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.format.names import StagingName, is_removed
from holdfast.checkpoint.store.removal import hide, remove_hidden
from holdfast.checkpoint.store.store import CheckpointStore


def hide_dead_staging(
    store: CheckpointStore,
    generation: int,
    in_flight: Collection[StagingName],
    reasons: list[str],
) -> None:
    """Hide each save that is not ``in_flight``; one of a later generation is not ours.

    Raises ``StorageFailed`` if the store cannot be listed.
    """
    for name in store.names():
        save = StagingName.parse(name)
        if save is None or save in in_flight or save.generation > generation:
            continue
        try:
            hide(store.disk, store.directory / name, save.removed_name)
        except StorageFailed as failure:
            reasons.append(str(failure))


def free_hidden(store: CheckpointStore, reasons: list[str]) -> int:
    """Remove all that is hidden, and return how many bytes that has freed."""
    before = _hidden_bytes(store)
    remove_hidden(store.disk, store.directory, reasons)
    return before - _hidden_bytes(store)


def _hidden_bytes(store: CheckpointStore) -> int:
    hidden = filter(is_removed, store.names())
    return sum(store.disk.size_of_tree(store.directory / name) for name in hidden)
