"""A step that could not be read back just now: nobody knows whether it counts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint import known_steps
from holdfast.checkpoint.errors import CheckpointUnreadable
from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks, read_back
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore, save


def fill(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        save(store, {"a": np.full(3, step)}, header=Header("run", 1, step))


def damage(store: CheckpointStore, step: int) -> None:
    shard = next((store.directory / f"step-{step:012d}").glob("*.h5"))
    shard.write_bytes(shard.read_bytes()[:-1] + b"?")


def failing_at(unreadable: int, read: list[int]) -> Callable[[CheckpointStore, int], None]:
    """Return a reading that fails for one step, and remembers all that were read."""

    def read_or_fail(store: CheckpointStore, step: int) -> None:
        read.append(step)
        if step == unreadable:
            raise CheckpointUnreadable(step, "Input/output error (EIO)")
        read_back(store, step)

    return read_or_fail


@pytest.mark.parametrize(("is_damaged", "left"), [(True, (50, 40, 30)), (False, (50, 40))])
def test_step_counts_as_kept_once_it_was_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: tuple[int, ...], *, is_damaged: bool
) -> None:
    """A bad disk gives an error first.  The newer step alone would be one sound step, not two."""
    store = CheckpointStore(tmp_path)
    fill(store, 10, 20, 30, 40)
    pruner = Pruner(OwnSteps(store), Retention(2), ReadMarks())
    with monkeypatch.context() as failing:
        failing.setattr(known_steps, "read_back", failing_at(40, []))
        pruner.prune(1.0)
    assert store.steps() == (40, 30, 20)

    if is_damaged:
        damage(store, 40)
    fill(store, 50)
    pruner.prune(2.0)

    assert store.steps() == left


def test_step_that_cannot_be_read_for_ever_is_read_once_a_prune(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = CheckpointStore(tmp_path)
    fill(store, 10, 20, 30, 40)
    read: list[int] = []
    monkeypatch.setattr(known_steps, "read_back", failing_at(40, read))
    pruner = Pruner(OwnSteps(store), Retention(2), ReadMarks())
    for step in (50, 60):
        fill(store, step)
        pruner.prune(float(step))

    assert read.count(40) <= 2
    assert store.steps() == (60, 50)
