"""Removal of whole directories from a store: each is renamed first, and emptied afterwards.

So a step stops being visible at once and as a whole.  A save that was given up can no
longer be committed: the rename of a killed process may be carried out late, and finds
nothing under the old name.  Without this it could make a directory visible as a step that
is being emptied.  A removal that is cut short is completed by the next ``remove_hidden``.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

from holdfast.checkpoint.disk.disk import Disk
from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.format.names import is_removed, removed_name, step_name

_EXISTS = frozenset({errno.EEXIST, errno.ENOTEMPTY})


def hide(disk: Disk, directory: Path, hidden_name: str) -> Path | None:
    """Give a directory its hidden name, and return that; None if the directory is not there."""
    hidden = directory.with_name(hidden_name)
    try:
        try:
            disk.rename(directory, hidden)
        except StorageFailed as failure:
            if failure.errno not in _EXISTS:
                raise
            disk.remove_tree(hidden)  # an earlier removal of the same name was cut short
            disk.rename(directory, hidden)
    except StorageFailed as failure:
        if failure.errno != errno.ENOENT:
            raise
        return None
    return hidden


def hide_steps(disk: Disk, store: Path, steps: Sequence[int], reasons: list[str]) -> None:
    """Rename committed steps so that no reader sees them any more."""
    for step in steps:
        try:
            hide(disk, store / step_name(step), removed_name(step))
        except StorageFailed as failure:
            reasons.append(str(failure))


def remove_staging(disk: Disk, staging: Path, hidden_name: str) -> None:
    """Remove a save that was never committed; a power cut may bring its name back, but empty."""
    hidden = hide(disk, staging, hidden_name)
    if hidden is not None:
        disk.remove_tree(hidden)


def remove_hidden(disk: Disk, store: Path, reasons: list[str]) -> None:
    """Remove what is hidden in a store, once a power cut can bring no step's old name back."""
    hidden = [name for name in _names(disk, store) if is_removed(name)]
    if hidden:
        disk.fsync_directory(store)
    for name in hidden:
        try:
            disk.remove_tree(store / name)
        except StorageFailed as failure:
            reasons.append(str(failure))


def _names(disk: Disk, store: Path) -> tuple[str, ...]:
    try:
        return disk.names(store)
    except StorageFailed as failure:
        if failure.errno != errno.ENOENT:
            raise
        return ()
