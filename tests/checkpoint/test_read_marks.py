"""What was read back, and what was moved aside."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem
from holders import fill, flip
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.retention import Pruner, ReadMarks, Retention
from holdfast.checkpoint.store import CheckpointStore

FILES = ("MANIFEST.json", "shard-00000-of-00002.h5", "shard-00001-of-00002.h5")

RUN = "run"


def saved_once() -> tuple[FakeFileSystem, CheckpointStore]:
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    save(store, {"a": np.arange(1000)}, header=Header("run", 1, 10), writers=2)
    return filesystem, store


def reading_calls(filesystem: FakeFileSystem, name: str, since: int) -> list[str]:
    calls = [call for call in filesystem.calls[since:] if call.endswith(f"/{name}")]
    return [call.split()[0] for call in calls]


@pytest.mark.parametrize("name", FILES)
def test_memory_is_not_asked_what_the_disk_holds(name: str) -> None:
    filesystem, store = saved_once()
    marks, before = ReadMarks(store, RUN, ()), len(filesystem.calls)

    marks.verify(10)

    own = reading_calls(filesystem, name, before)
    assert 10 in marks.whole
    assert "uncache" in own
    assert "read" not in own[: own.index("uncache")]
    assert "read" in own


def test_system_that_cannot_forget_is_read_all_the_same() -> None:
    filesystem, store = saved_once()
    before = len(filesystem.calls)
    ReadMarks(store, RUN, ()).verify(10)
    number = next(
        number
        for number, call in enumerate(filesystem.calls)
        if number >= before and call.startswith("uncache")
    )
    filesystem, store = saved_once()
    filesystem.fail_at(number, errno.EINVAL)

    assert ReadMarks(store, RUN, ()).verify(10) is None


def test_damage_is_remembered_until_the_step_is_saved_or_read_again() -> None:
    _, store = saved_once()

    marks = ReadMarks(store, RUN, {10})
    assert marks.damaged == {10}
    assert marks.verify(10) is None
    assert marks.damaged == set()

    marks = ReadMarks(store, RUN, {10})
    marks.forget(10)
    assert marks.damaged == set()


class UnreadableStep(FakeFileSystem):
    """A disk of which one step cannot be read for a while; tries count."""

    name = ""
    tries = 0

    def open_read(self, path: Path) -> int:
        if path.parent.name == self.name:
            self.tries += 1
            raise OSError(errno.EIO, "Input/output error")
        return super().open_read(path)


@pytest.mark.parametrize(("is_damaged", "left"), [(True, (50, 40, 30)), (False, (50, 40))])
def test_step_counts_as_kept_once_it_was_read(left: tuple[int, ...], *, is_damaged: bool) -> None:
    """A bad disk gives an error first.  The newer step alone would be one sound step, not two."""
    files = UnreadableStep()
    store = CheckpointStore(Path("/run/job"), files)
    fill(store, 10, 20, 30, 40)
    pruner = Pruner(store, Retention(2))
    files.name = step_name(40)
    pruner.prune()
    assert store.steps() == (40, 30, 20)

    files.name = ""
    if is_damaged:
        store.disk.remove_file(store.directory / step_name(40) / FILES[0])
    fill(store, 50)
    pruner.prune()

    assert store.steps() == left


def test_step_that_cannot_be_read_for_ever_is_read_once_a_prune() -> None:
    files = UnreadableStep()
    store = CheckpointStore(Path("/run/job"), files)
    fill(store, 10, 20, 30, 40)
    files.name = step_name(40)
    pruner = Pruner(store, Retention(2))
    for step in (50, 60):
        fill(store, step)
        pruner.prune()

    assert files.tries <= 2
    assert store.steps() == (60, 50)


def add(store: CheckpointStore, step: int) -> None:
    save(store, {"weights": np.full(3000, step)}, header=Header(RUN, 1, step))


def damage_in(store: CheckpointStore, name: str) -> None:
    flip(store.directory / name / "shard-00000-of-00001.h5", 5000)


def add_bad(store: CheckpointStore, step: int, save_name: str = "g2-a1") -> str:
    add(store, step)
    name = f".bad-{step:012d}-{save_name}"
    (store.directory / step_name(step)).rename(store.directory / name)
    damage_in(store, name)
    return name


def bad_names(store: CheckpointStore) -> list[str]:
    return [name for name in store.names() if name.startswith(".bad-")]


def test_newest_two_stay_and_the_others_are_told(store: CheckpointStore) -> None:
    names = [
        add_bad(store, step, save)
        for step, save in ((10, "g2-a1"), (40, "g13-a1"), (40, "g9-a1"), (40, "g13-a2"))
    ]
    add(store, 50)

    reasons = Pruner(store, Retention(), RUN).prune()

    assert bad_names(store) == [names[1], names[3]]
    assert sorted(reason.split()[0] for reason in reasons) == [names[0], names[2]]
    assert "moved aside because it is damaged" in reasons[0]
    assert Pruner(store, Retention(), RUN).prune() == ()
