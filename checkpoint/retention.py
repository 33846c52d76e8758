"""Which checkpoints to keep, and the removal of the others.

A step is removed by renaming it first, so that it stops being visible at once and
as a whole; a removal that was cut short goes on at the next prune.  Nothing here
fails a save: the new checkpoint is durable before the first old one is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.names import is_removed, removed_name, step_name
from holdfast.checkpoint.store import CheckpointStore

FEWEST_KEPT = 2  # with one, the only checkpoint would be replaced by one that nobody has read yet


def prune_plan(steps: Iterable[int], keep: int) -> tuple[int, ...]:
    """Return the steps to remove, oldest first, so that the newest ``keep`` stay, at least two."""
    newest_first = sorted(set(steps), reverse=True)
    return tuple(sorted(newest_first[max(keep, FEWEST_KEPT) :]))


def prune(store: CheckpointStore, keep: int) -> tuple[str, ...]:
    """Remove all but the newest ``keep`` steps; returns why anything was left, never raises it."""
    reasons: list[str] = []
    try:
        _remove_hidden(store, reasons)
        _hide(store, prune_plan(store.steps(), keep), reasons)
        _remove_hidden(store, reasons)
    except StorageFailed as failure:
        reasons.append(str(failure))
    return tuple(dict.fromkeys(reasons))


def _hide(store: CheckpointStore, steps: Sequence[int], reasons: list[str]) -> None:
    """Rename steps so that nobody sees them any more."""
    for step in steps:
        source, target = store.directory / step_name(step), store.directory / removed_name(step)
        try:
            store.disk.rename(source, target)
        except StorageFailed as failure:
            reasons.append(str(failure))


def _remove_hidden(store: CheckpointStore, reasons: list[str]) -> None:
    """Remove what is hidden, once a power cut can no longer bring its old name back."""
    hidden = [name for name in store.names() if is_removed(name)]
    if hidden:
        store.disk.fsync_directory(store.directory)
    for name in hidden:
        try:
            store.disk.remove_tree(store.directory / name)
        except StorageFailed as failure:
            reasons.append(str(failure))
