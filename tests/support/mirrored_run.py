"""A run with a second holder, and ways to damage both."""

from __future__ import annotations

from pathlib import Path

import pytest
from resumed_run import Run

from holdfast.checkpoint.store import CheckpointStore

WRITERS = 4
NEWEST = "step-000000000020"


def mirrored_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a run of two checkpoints with a copy of both."""
    directory = tmp_path / "run"
    directory.mkdir()
    found = Run(directory)
    monkeypatch.setattr(
        "holdfast.runtime.training.restoring._numerics_of", lambda _: found.numerics
    )
    found.save(10, 1.0, WRITERS)
    found.save(20, 2.0, WRITERS)
    found.copy()
    return found


def there(run: Run) -> CheckpointStore:
    assert run.second_holder is not None
    return CheckpointStore(run.second_holder)


def flip_a_byte(store: CheckpointStore, name: str, offset: int) -> None:
    path = store.directory / NEWEST / name
    data = bytearray(path.read_bytes())
    data[offset % len(data)] ^= 1
    path.write_bytes(data)


def shard(index: int) -> str:
    return f"shard-{index:05d}-of-{WRITERS:05d}.h5"
