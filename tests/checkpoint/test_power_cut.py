"""The power goes at every single call of a save: what was acknowledged is restorable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from fake_filesystem import FakeFileSystem, PowerCut, Survival
from holders import small_state
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore

pytestmark = pytest.mark.usefixtures("early_writeback")

RUN_DIR = Path("/run/job")
STEPS = (10, 20, 30)


class Cut(NamedTuple):
    """A file system whose power went, and the last step that was acknowledged before."""

    filesystem: FakeFileSystem
    acknowledged: int


CASES = [
    (Survival.NOTHING, 0),
    (Survival.NAMES, 0),
    *((Survival.ANYTHING, seed) for seed in range(3)),
    *(pytest.param(Survival.ANYTHING, seed, marks=pytest.mark.extended) for seed in range(3, 8)),
]


def train(filesystem: FakeFileSystem, acknowledge: Callable[[int], None]) -> None:
    """Save and prune a few steps, in the order of a job."""
    store = CheckpointStore(RUN_DIR, filesystem)
    for step in STEPS:
        save(store, small_state(step), header=Header("run", 1, step), writers=2)
        acknowledge(step)
        Pruner(store, Retention(2)).prune()


def count_calls() -> int:
    filesystem = FakeFileSystem()
    train(filesystem, lambda _: None)
    return len(filesystem.calls)


@pytest.fixture(scope="module")
def cuts() -> list[Cut]:
    """Return one interrupted run for each call that a whole run makes."""
    return [cut(call) for call in range(count_calls())]


def cut(call: int) -> Cut:
    filesystem = FakeFileSystem()
    filesystem.cut_power_at(call)
    acknowledged = [0]
    with pytest.raises(PowerCut):
        train(filesystem, acknowledged.append)
    return Cut(filesystem, acknowledged[-1])


@pytest.mark.parametrize(("survival", "seed"), CASES)
def test_what_is_visible_is_whole_and_has_what_was_acknowledged_wherever_the_power_goes(
    cuts: list[Cut], survival: Survival, seed: int, same_bytes: Callable[..., bool]
) -> None:
    """Visible means complete: after a cut no listed step is rejected."""
    for call, (filesystem, acknowledged) in enumerate(cuts):
        after = CheckpointStore(RUN_DIR, filesystem.after_power_cut(survival, seed + call))

        steps = after.steps()
        for step in steps:
            assert same_bytes(restore(after, step).state, small_state(step))
        found = max(steps, default=0)
        assert found >= acknowledged, f"call {call}: {filesystem.calls[-1]}"


def test_saving_goes_on_after_a_power_cut_at_every_call(
    cuts: list[Cut], same_bytes: Callable[..., bool]
) -> None:
    for call, (filesystem, _) in enumerate(cuts):
        after = CheckpointStore(RUN_DIR, filesystem.after_power_cut(Survival.ANYTHING, call))

        after.clean_staging(2)
        save(after, small_state(50), header=Header("run", 2, 50))
        reasons = Pruner(after, Retention(2)).prune()

        restored, rejections = restore_newest(after)
        assert restored is not None
        assert restored.manifest.step == 50
        assert same_bytes(restored.state, small_state(50))
        assert (reasons, rejections) == ((), ())
        assert [name for name in after.names() if not name.startswith("step-")] == []
