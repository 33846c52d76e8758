"""Whose a step is, what is known of it, and what was moved aside."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem
from holders import damage, fill, flip
from recording import Recording

from holdfast.checkpoint import known_steps
from holdfast.checkpoint.errors import CheckpointUnreadable
from holdfast.checkpoint.known_steps import (
    KnownStep,
    KnownSteps,
    Owner,
    OwnSteps,
    ReadMarks,
    bad_steps,
    read_back,
)
from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.names import MANIFEST_NAME, step_name
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Best, Pruner, Retention, Wanted, prune
from holdfast.checkpoint.store import CheckpointStore, save

MINE, OTHER = "a" * 16, "b" * 16

FILES = ("MANIFEST.json", "shard-00000-of-00002.h5", "shard-00001-of-00002.h5")

RUN = "run"


@pytest.fixture
def files(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


@pytest.fixture
def known(files: Recording, tmp_path: Path) -> KnownSteps:
    store = CheckpointStore(tmp_path, files)
    for step in (10, 20):
        measured = EpochMetrics.join(1, 20, {"loss": 0.5}, {})
        header = Header("run", 1, step)
        save(store, {"weights": np.arange(900)}, header=header, cursor=measured.into({}), writers=3)
    files.opened.clear()
    return KnownSteps(OwnSteps(store))


def shards(tmp_path: Path, step: int) -> list[Path]:
    return sorted((tmp_path / "checkpoints" / step_name(step)).glob("*.h5"))


def test_metrics_and_sizes_come_from_the_manifests_alone(
    known: KnownSteps, files: Recording, tmp_path: Path
) -> None:
    found = known.newest_first(are_read=True)

    sizes = [sum(path.stat().st_size for path in shards(tmp_path, step)) for step in (20, 10)]
    assert found == (KnownStep(20, {"loss": 0.5}, sizes[0]), KnownStep(10, {}, sizes[1]))
    assert files.opened == {MANIFEST_NAME}


def test_manifest_is_read_once(known: KnownSteps, files: Recording) -> None:
    known.newest_first(are_read=True)
    files.opened.clear()

    known.newest_first(are_read=True)

    assert files.opened == set()


def test_nothing_is_read_where_nothing_is_asked(known: KnownSteps, files: Recording) -> None:
    assert known.newest_first(are_read=False) == (KnownStep(20), KnownStep(10))
    assert files.opened == set()


def test_step_without_a_manifest_has_the_size_of_its_files(
    known: KnownSteps, tmp_path: Path
) -> None:
    """It may be the best, and its manifest may be readable the next time."""
    manifest = tmp_path / "checkpoints" / step_name(10) / MANIFEST_NAME
    os.rename(manifest, tmp_path / "away")
    size = sum(path.stat().st_size for path in shards(tmp_path, 10))

    lost = known.newest_first(are_read=True)[1]
    os.rename(tmp_path / "away", manifest)
    again = known.newest_first(are_read=True)[1]

    assert (lost, again) == (KnownStep(10, None, size), KnownStep(10, {}, size))


def rot_manifest(store: CheckpointStore, step: int) -> None:
    (store.directory / step_name(step) / MANIFEST_NAME).write_bytes(b"{}")


@pytest.mark.parametrize("retention", [Retention(2), Retention(2, (Wanted(best=Best("loss")),))])
def test_steps_of_another_run_push_no_own_step_out(
    store: CheckpointStore, retention: Retention
) -> None:
    """Two jobs have met in one directory, and the other one is further."""
    fill(store, 10, 20, 30, run_id=MINE)
    fill(store, 5, 1100, 1200, 1300, run_id=OTHER)

    reasons = prune(OwnSteps(store, MINE), retention)

    assert store.steps() == (1300, 1200, 1100, 30, 20, 5)
    assert reasons == tuple(
        f"step {step} is neither counted nor removed: it belongs to run {OTHER}, not to {MINE}"
        for step in (1300, 1200, 1100, 5)
    )


def test_step_of_a_damaged_manifest_neither_counts_nor_goes(store: CheckpointStore) -> None:
    """Nobody can tell whether it is sound, and whose it is."""
    fill(store, 10, 20, 30, 40, run_id=MINE)
    rot_manifest(store, 10)
    rot_manifest(store, 30)

    prune(OwnSteps(store, MINE), Retention(2))

    assert store.steps() == (40, 30, 20, 10)
    fill(store, 50, run_id=MINE)
    prune(OwnSteps(store, MINE), Retention(2))
    assert store.steps() == (50, 40, 30, 10)


def test_step_of_another_run_is_told_once(store: CheckpointStore) -> None:
    fill(store, 10, run_id=MINE)
    fill(store, 1100, run_id=OTHER)
    pruner = Pruner(OwnSteps(store, MINE), Retention(2), ReadMarks())

    assert [len(pruner.prune()) for _ in range(3)] == [1, 0, 0]


def test_step_that_is_saved_again_may_have_become_an_own_one(store: CheckpointStore) -> None:
    fill(store, 10, run_id=OTHER)
    own = OwnSteps(store, MINE)
    assert own.owner_of(10) is Owner.OTHER
    damage(store, 10)
    fill(store, 10, run_id=MINE)

    own.forget(10)

    assert own.newest_first() == (10,)


def test_step_that_is_known_to_be_own_is_not_read_for_it(store: CheckpointStore) -> None:
    fill(store, 10, run_id=MINE)
    rot_manifest(store, 10)
    own = OwnSteps(store, MINE)

    own.mark_own(10)

    assert own.owner_of(10) is Owner.RUN


def test_step_of_an_unreadable_manifest_is_looked_at_again(store: CheckpointStore) -> None:
    fill(store, 10, run_id=MINE)
    own = OwnSteps(store, MINE)
    manifest = store.directory / step_name(10) / MANIFEST_NAME
    content = manifest.read_bytes()
    rot_manifest(store, 10)

    assert own.owner_of(10) is Owner.UNKNOWN
    assert own.newest_first() == (10,)
    manifest.write_bytes(content)
    assert own.owner_of(10) is Owner.RUN


def test_without_a_run_every_step_is_an_own_one(store: CheckpointStore) -> None:
    fill(store, 10, run_id=MINE)
    fill(store, 20, 30, run_id=OTHER)

    assert prune(OwnSteps(store), Retention(2)) == ()
    assert store.steps() == (30, 20)


def saved_once() -> tuple[FakeFileSystem, CheckpointStore]:
    filesystem = FakeFileSystem()
    store = CheckpointStore(Path("/run/job"), filesystem)
    save(store, {"a": np.arange(1000)}, header=Header("run", 1, 10), writers=2)
    return filesystem, store


def test_step_is_marked_when_all_of_it_was_read() -> None:
    _, store = saved_once()
    marks = ReadMarks()

    assert marks.verify(store, 10) is None
    assert 10 in marks


def reading_calls(filesystem: FakeFileSystem, name: str, since: int) -> list[str]:
    calls = [call for call in filesystem.calls[since:] if call.endswith(f"/{name}")]
    return [call.split()[0] for call in calls]


@pytest.mark.parametrize("name", FILES)
def test_memory_is_not_asked_what_the_disk_holds(name: str) -> None:
    filesystem, store = saved_once()
    marks, before = ReadMarks(), len(filesystem.calls)

    marks.verify(store, 10)

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
    ReadMarks().verify(store, 10)
    number = next(
        number
        for number, call in enumerate(filesystem.calls)
        if number >= before and call.startswith("uncache")
    )
    filesystem, store = saved_once()
    filesystem.fail_at(number, errno.EINVAL)

    assert ReadMarks().verify(store, 10) is None


def test_step_that_does_not_verify_loses_its_mark() -> None:
    _, store = saved_once()
    marks = ReadMarks()
    marks.mark(10)
    store.disk.remove_tree(store.directory / "step-000000000010")

    reason = marks.verify(store, 10)

    assert reason is not None
    assert "MANIFEST.json" in reason
    assert 10 not in marks


def test_damage_is_remembered_until_the_step_is_saved_or_read_again() -> None:
    _, store = saved_once()
    marks = ReadMarks()

    marks.mark_damaged(10)
    assert marks.is_damaged(10)
    assert marks.verify(store, 10) is None
    assert not marks.is_damaged(10)

    marks.mark_damaged(10)
    marks.forget(10)
    assert not marks.is_damaged(10)


def test_step_that_cannot_be_read_just_now_is_not_called_damaged() -> None:
    filesystem, store = saved_once()
    marks = ReadMarks()
    filesystem.fail_at(len(filesystem.calls), errno.EIO)

    assert marks.verify(store, 10) is not None
    assert not marks.is_damaged(10)


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
        pruner.prune()
    assert store.steps() == (40, 30, 20)

    if is_damaged:
        damage(store, 40)
    fill(store, 50)
    pruner.prune()

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
        pruner.prune()

    assert read.count(40) <= 2
    assert store.steps() == (60, 50)


def add(store: CheckpointStore, step: int, run_id: str = RUN) -> None:
    save(store, {"weights": np.full(3000, step)}, header=Header(run_id, 1, step))


def damage_in(store: CheckpointStore, name: str) -> None:
    flip(store.directory / name / "shard-00000-of-00001.h5", 5000)


def add_bad(store: CheckpointStore, step: int, save_name: str = "g2-a1", run_id: str = RUN) -> str:
    add(store, step, run_id)
    name = f".bad-{step:012d}-{save_name}"
    (store.directory / step_name(step)).rename(store.directory / name)
    damage_in(store, name)
    return name


def bad_names(store: CheckpointStore) -> list[str]:
    return [name for name in store.names() if name.startswith(".bad-")]


def test_names_are_sorted_as_numbers() -> None:
    names = [f".bad-{40:012d}-{save}" for save in ("g13-a1", "g9-a1", "g9-a12", "g9-a2")]

    found = [bad.bad_name for bad in bad_steps([*names, step_name(40), ".bad-junk"])]

    assert found == [names[0], names[2], names[3], names[1]]


def test_newest_two_stay_and_the_others_are_told(store: CheckpointStore) -> None:
    names = [add_bad(store, step) for step in (10, 30, 20, 40)]
    add(store, 50)

    reasons = prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == [names[1], names[3]]
    assert sorted(reason.split()[0] for reason in reasons) == [names[0], names[2]]
    assert "moved aside because it is damaged" in reasons[0]
    assert prune(OwnSteps(store, RUN), Retention()) == ()


def test_two_of_one_step_stay_since_they_may_complement_each_other(store: CheckpointStore) -> None:
    names = [add_bad(store, 40, save_name) for save_name in ("g9-a1", "g13-a1", "g13-a2")]
    add(store, 40)

    prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == sorted(names[1:])


@pytest.mark.parametrize("newest", ["is older", "is damaged", "is missing"])
def test_nothing_goes_before_a_step_as_new_was_read_back(
    store: CheckpointStore, newest: str
) -> None:
    names = [add_bad(store, step) for step in (20, 30, 40)]
    if newest != "is missing":
        add(store, 10 if newest == "is older" else 50)
    if newest == "is damaged":
        damage_in(store, step_name(50))

    prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == names


def test_step_that_was_read_back_is_not_read_again(store: CheckpointStore) -> None:
    names = [add_bad(store, step) for step in (20, 30, 40)]
    add(store, 50)
    marks = ReadMarks()
    marks.mark(50)
    damage_in(store, step_name(50))  # a second reading would find it

    Pruner(OwnSteps(store, RUN), Retention(), marks).prune()

    assert bad_names(store) == names[1:]


def test_what_may_be_another_runs_stays(store: CheckpointStore) -> None:
    others = [add_bad(store, 10, run_id="other"), add_bad(store, 20)]
    flip(store.directory / others[1] / MANIFEST_NAME, 50)
    own = [add_bad(store, step) for step in (5, 30, 40)]
    add(store, 50)

    prune(OwnSteps(store, RUN), Retention())

    assert bad_names(store) == [*others, *own[1:]]


def test_removal_that_was_cut_short_is_completed(store: CheckpointStore) -> None:
    bad = bad_steps([add_bad(store, 10)])[0]
    (store.directory / bad.bad_name).rename(store.directory / bad.removed_name)
    add(store, 50)

    assert prune(OwnSteps(store, RUN), Retention()) == ()

    assert store.names() == (step_name(50),)
