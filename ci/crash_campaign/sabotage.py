"""Ways to break the checkpoint layer on purpose: a campaign that misses them proves nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from holdfast.checkpoint.disk.filesystem import LocalFileSystem
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.store import scan, store


class _BlindDigest:
    """A digest that agrees with every other one."""

    def __init__(self, kind: object = None) -> None:
        pass

    def update(self, data: object) -> None:
        """Take nothing in."""

    def hexdigest(self) -> _BlindDigest:
        """Return this object, which is equal to every other one."""
        return self

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def _leave_out(name: str) -> Callable[[], None]:
    return lambda: setattr(LocalFileSystem, name, lambda *_: None)


def _blind() -> None:
    scan.Digest = _BlindDigest  # type: ignore[assignment,attr-defined]


def _hide_errors() -> None:
    commit = store.Staging.commit

    def silent(staging: store.Staging, manifest: Manifest) -> Path:
        with contextlib.suppress(CheckpointError):
            return commit(staging, manifest)
        return staging.path

    store.Staging.commit = silent  # type: ignore[assignment,method-assign]


SABOTAGES: dict[str, Callable[[], None]] = {
    "no-fsync": _leave_out("fsync"),
    "no-directory-fsync": _leave_out("fsync_directory"),
    "no-digests": _blind,
    "no-errors": _hide_errors,
}
