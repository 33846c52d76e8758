from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem

from holdfast.checkpoint.known_steps import OwnSteps, ReadMarks
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.scrub import Scrubber
from holdfast.checkpoint.store import CheckpointStore, save


def saved_once() -> tuple[FakeFileSystem, CheckpointStore]:
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    save(store, {"a": np.arange(1000)}, header=Header("run", 1, 10), writers=2)
    return filesystem, store


def test_step_is_marked_when_all_of_it_was_read() -> None:
    _, store = saved_once()
    marks = ReadMarks()

    assert marks.verify(store, 10, 5.0) is None
    assert 10 in marks
    assert marks.time_of(10) == 5.0


FILES = ("MANIFEST.json", "shard-00000-of-00002.h5", "shard-00001-of-00002.h5")


def reading_calls(filesystem: FakeFileSystem, name: str, since: int) -> list[str]:
    calls = [call for call in filesystem.calls[since:] if call.endswith(f"/{name}")]
    return [call.split()[0] for call in calls]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("reader", ["prune", "scrub"])
def test_memory_is_not_asked_what_the_disk_holds(reader: str, name: str) -> None:
    filesystem, store = saved_once()
    marks, before = ReadMarks(), len(filesystem.calls)

    if reader == "prune":
        marks.verify(store, 10, 5.0)
    else:
        Scrubber(OwnSteps(store), marks, generation=1).run_one(5.0)

    own = reading_calls(filesystem, name, before)
    assert 10 in marks
    assert "uncache" in own
    assert "read" not in own[: own.index("uncache")]
    assert "read" in own


@pytest.mark.parametrize("name", FILES)
def test_memory_is_asked_by_those_who_want_an_answer_at_once(name: str) -> None:
    filesystem, store = saved_once()
    before = len(filesystem.calls)

    store.steps()
    store.scan(10).manifest_alone()
    restore(store, 10)

    own = reading_calls(filesystem, name, before)
    assert "read" in own
    assert "uncache" not in own


def test_system_that_cannot_forget_is_read_all_the_same() -> None:
    filesystem, store = saved_once()
    before = len(filesystem.calls)
    ReadMarks().verify(store, 10, 5.0)
    number = next(
        number
        for number, call in enumerate(filesystem.calls)
        if number >= before and call.startswith("uncache")
    )
    filesystem, store = saved_once()
    filesystem.fail_at(number, errno.EINVAL)

    assert ReadMarks().verify(store, 10, 5.0) is None


def test_step_that_does_not_verify_loses_its_mark() -> None:
    _, store = saved_once()
    marks = ReadMarks()
    marks.mark(10, 1.0)
    store.disk.remove_tree(store.directory / "step-000000000010")

    reason = marks.verify(store, 10, 5.0)

    assert reason is not None
    assert "MANIFEST.json" in reason
    assert 10 not in marks


def test_damage_is_remembered_until_the_step_is_saved_or_read_again() -> None:
    _, store = saved_once()
    marks = ReadMarks()

    marks.mark_damaged(10)
    assert marks.is_damaged(10)
    assert marks.verify(store, 10, 5.0) is None
    assert not marks.is_damaged(10)

    marks.mark_damaged(10)
    marks.forget(10)
    assert not marks.is_damaged(10)


def test_step_that_cannot_be_read_just_now_is_not_called_damaged() -> None:
    filesystem, store = saved_once()
    marks = ReadMarks()
    filesystem.fail_at(len(filesystem.calls), errno.EIO)

    assert marks.verify(store, 10, 5.0) is not None
    assert not marks.is_damaged(10)
