"""How much space checkpoints may take, which steps go, and how a full disk is answered."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem, PowerCut, Survival
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.known_steps import KnownStep, OwnSteps, ReadMarks
from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.names import StagingName, step_name
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Best, Pruner, Retention, Wanted, prune_plan
from holdfast.checkpoint.space import Space, steps_too_many
from holdfast.checkpoint.store import CheckpointStore, save

SIZES = st.dictionaries(st.integers(0, 50), st.integers(0, 100), max_size=12)

RETENTIONS = st.builds(
    Retention,
    st.integers(1, 6),
    st.builds(Wanted, st.none() | st.integers(1, 9)).map(lambda wanted: (wanted,)),
    st.frozensets(st.integers(0, 60)),
)

RUN, GENERATION = "run", 5


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ("200GB", 200 * 10**9),
        ("1TiB", 2**40),
        (" 1.5 gib ", 3 * 2**29),
        ("512B", 512),
        ("20%", 200_000),
        ("0.5%", 5000),
        ("100%", 10**6),
    ],
)
def test_space_is_bytes_or_a_share_of_the_file_system(text: str, limit: int) -> None:
    assert Space.parse(text).limit(10**6) == limit


@pytest.mark.parametrize(
    "text", ["", "much", "200", "GB", "-5GB", "5 XB", "0GB", "0%", "101%", "1e3GB", "0.1B"]
)
def test_other_texts_are_no_space(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no space: give a size|must be more than nothing"):
        Space.parse(text)


@given(SIZES, st.data(), st.integers(-50, 1000))
def test_no_more_go_than_must_and_the_lowest_rank_goes_first(
    sizes: dict[int, int], data: st.DataObject, limit: int
) -> None:
    may_go = data.draw(st.sets(st.sampled_from(sorted(sizes)))) if sizes else set()
    ranks = {step: data.draw(st.integers(0, 2)) for step in may_go}

    gone = steps_too_many(sizes, ranks, limit)

    rest = sum(size for step, size in sizes.items() if step not in gone)
    order = sorted(ranks, key=lambda step: (ranks[step], step))
    assert list(gone) == order[: len(gone)]
    assert rest <= limit or set(gone) == may_go
    assert not gone or rest + sizes[gone[-1]] > limit


def known(step: int, size: int = 10, loss: float | None = None) -> KnownStep:
    return KnownStep(step, {} if loss is None else {"loss": loss}, size)


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (None, (50, 40, 30, 20, 10)),
        (50, (50, 40, 30, 20, 10)),
        (49, (50, 40, 30, 20)),
        (20, (50, 40)),
        (0, (50, 40)),
    ],
)
def test_oldest_go_until_the_rest_fits(limit: int | None, kept: tuple[int, ...]) -> None:
    plan = prune_plan([known(step) for step in range(10, 60, 10)], Retention(9), limit=limit)

    assert plan.kept == kept
    assert plan.excess == max(0, 10 * len(kept) - (100 if limit is None else limit))


def test_what_stays_for_ever_yields_last_and_the_best_after_every_nth() -> None:
    steps = [known(step, loss=step) for step in range(10, 80, 10)]
    retention = Retention(4, (Wanted(20, Best("loss")),))  # 20, 40, 60 and 10

    kept = [prune_plan(steps, retention, limit=limit) for limit in (60, 50, 40, 30, 20)]

    assert [plan.kept for plan in kept] == [
        (70, 60, 50, 40, 20, 10),
        (70, 60, 40, 20, 10),
        (70, 60, 40, 10),
        (70, 60, 10),
        (70, 60),
    ]
    assert [plan.yielded for plan in kept] == [(), (), (20,), (20, 40), (10, 20, 40)]


@given(
    st.dictionaries(st.integers(0, 60), st.integers(0, 30), max_size=12),
    st.sets(st.integers(0, 60)),
    RETENTIONS,
    st.integers(-10, 400),
)
def test_newest_two_sound_steps_and_what_a_relaunch_needs_stay(
    sizes: dict[int, int], unsound: set[int], retention: Retention, limit: int
) -> None:
    steps = [known(step, size) for step, size in sizes.items()]

    plan = prune_plan(steps, retention, unsound, limit)

    without = prune_plan(steps, retention, unsound)
    sound = sorted(sizes.keys() - unsound, reverse=True)
    floor = sound[1] if len(sound) > 1 else 0
    must = {step for step in sizes if step >= floor or step in retention.forever}
    assert must <= set(plan.kept) <= set(without.kept)
    assert sorted(plan.kept + plan.removed) == sorted(sizes)
    assert plan.excess == 0 or set(plan.kept) == must


@pytest.fixture
def files() -> SmallDisk:
    return SmallDisk()


@pytest.fixture
def store(files: SmallDisk) -> CheckpointStore:
    return CheckpointStore(Path("/run/job"), files)


def add(store: CheckpointStore, *steps: int, run_id: str = "run", generation: int = 1) -> int:
    """Save steps of one size, and return that size."""
    for step in steps:
        metrics = EpochMetrics.join(1, step, {"loss": step}, {})
        header = Header(run_id, generation, step)
        save(store, {"weights": np.arange(4000)}, header=header, cursor=metrics.into({}))
    return store.scan(steps[-1]).manifest().nbytes


def pruner_within(store: CheckpointStore, space: Space, *wanted: Wanted) -> Pruner:
    return Pruner(OwnSteps(store, "run"), Retention(99, wanted, space=space), ReadMarks())


def test_steps_of_a_run_fit_into_their_space(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30, 40, 50)

    assert pruner_within(store, Space(3 * size)).prune() == ()

    assert store.steps() == (50, 40, 30)


def test_share_is_one_of_the_file_system(store: CheckpointStore, files: SmallDisk) -> None:
    files.capacity_bytes = 8 * add(store, 10, 20, 30, 40, 50)

    assert pruner_within(store, Space.parse("50%")).prune() == ()

    assert store.steps() == (50, 40, 30, 20)


def test_step_that_was_to_stay_for_ever_is_told_when_it_goes(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30, 40, 50)

    reasons = pruner_within(store, Space(2 * size), Wanted(40, Best("loss"))).prune()

    assert store.steps() == (50, 40)
    assert reasons == (
        "step 10 was to be kept for ever and is removed: the checkpoints take more space than "
        "--keep-space allows",
    )


def test_space_that_two_steps_exceed_is_told_once(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30)
    keeper = pruner_within(store, Space(size))

    (told,) = keeper.prune()

    assert f"take {size} bytes more than --keep-space allows" in told
    assert store.steps() == (30, 20)
    assert keeper.prune() == ()


def test_damaged_steps_that_were_moved_aside_count(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30, 40, 50)
    directory = store.directory
    store.disk.rename(directory / "step-000000000030", directory / ".bad-000000000030-g1-a1")

    pruner_within(store, Space(7 * size // 2)).prune()

    assert store.steps() == (50, 40)
    assert ".bad-000000000030-g1-a1" in store.names()


def test_nothing_goes_for_space_before_a_newer_step_was_read_back(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30)
    for step in (20, 30):
        store.disk.remove_file(store.directory / f"step-{step:012d}" / "shard-00000-of-00001.h5")

    reasons = pruner_within(store, Space(size)).prune()

    assert store.steps() == (30, 20, 10)
    assert "step 30 does not verify" in reasons[0]


def test_steps_of_another_run_neither_count_nor_go(store: CheckpointStore) -> None:
    add(store, 5, 15, run_id="other")
    size = add(store, 10, 20, 30)

    pruner_within(store, Space(2 * size)).prune()

    assert store.steps() == (30, 20, 15, 5)


def test_store_without_a_step_needs_no_capacity(store: CheckpointStore) -> None:
    assert pruner_within(store, Space.parse("1%")).prune() == ()


class SmallDisk(FakeFileSystem):
    """A disk of ``capacity_bytes``; a test may let it be full by quota."""

    number = errno.ENOSPC

    def allocate(self, handle: int, size_bytes: int) -> None:
        if self._used() + size_bytes > self.capacity_bytes:
            raise OSError(self.number, "full")
        super().allocate(handle, size_bytes)

    def _used(self) -> int:
        store = self.root / "job" / "checkpoints"
        top = self._directory(store)
        inner = [self._directory(store / name) for name in top.live]
        files = [file for directory in inner for file in directory.live.values()]
        return sum(len(file.live) for file in files)


def leave_staging(store: CheckpointStore, *names: StagingName) -> None:
    for name in names:
        staging = store.staging(name.step, name.generation, name.attempt)
        staging.open()
        store.disk.write_durably(staging.path / "shard-00000-of-00001.h5", [memoryview(b"x" * 99)])


def set_aside(store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        target = store.directory / f".bad-{step:012d}-g1-a1"
        store.disk.rename(store.directory / step_name(step), target)


def pruner(store: CheckpointStore, *wanted: Wanted, read: Sequence[int] = ()) -> Pruner:
    marks = ReadMarks()
    for step in read:
        marks.mark(step)
    return Pruner(OwnSteps(store, RUN), Retention(99, wanted), marks)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_save_that_found_the_disk_full_succeeds_the_second_time(
    store: CheckpointStore, files: SmallDisk, number: int
) -> None:
    size = add(store, 10, 20, 30)
    files.capacity_bytes, files.number = files._used() + size // 2, number
    with pytest.raises(StorageFailed) as failure:
        add(store, 40, generation=GENERATION)
    assert failure.value.is_full

    reasons = pruner(store).make_room(size, GENERATION)
    add(store, 40, generation=GENERATION)

    assert store.steps() == (40, 30, 20)
    assert reasons == (f"step 10 is removed: the disk is full, and a save lacks {size} bytes",)


def test_leftovers_go_before_any_step(store: CheckpointStore) -> None:
    add(store, 5, 6, 10, 20, 30)
    dead = [StagingName(40, GENERATION, 1), StagingName(40, 2, 3)]
    leave_staging(store, *dead)
    set_aside(store, 5, 6)
    hidden = store.directory / ".del-000000000010"
    store.disk.rename(store.directory / step_name(10), hidden)

    reasons = pruner(store).make_room(1000, GENERATION)

    assert store.names() == (".bad-000000000006-g1-a1", step_name(20), step_name(30))
    assert [reason.split()[0] for reason in reasons] == [".bad-000000000005-g1-a1"]


def test_saves_in_flight_and_of_later_generations_stay(store: CheckpointStore) -> None:
    add(store, 10)
    alive = [StagingName(40, GENERATION, 2), StagingName(40, GENERATION + 1, 1)]
    leave_staging(store, StagingName(40, GENERATION, 1), *alive)

    pruner(store).make_room(10**9, GENERATION, in_flight=alive[:1])

    assert store.names() == (*map(str, alive), step_name(10))


def test_newest_two_sound_steps_stay_however_much_is_needed(store: CheckpointStore) -> None:
    add(store, 10, 20, 30, 40)
    store.disk.remove_file(store.directory / step_name(40) / "shard-00000-of-00001.h5")

    reasons = pruner(store, Wanted(every=10)).make_room(10**12, GENERATION)

    assert store.steps() == (40, 30, 20)
    assert any("step 40 does not verify" in reason for reason in reasons)
    assert any(reason.startswith("step 10 is removed") for reason in reasons)


def test_what_stays_for_ever_goes_last(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 25, 30, 40)

    pruner(store, Wanted(every=10)).make_room(size, GENERATION)
    first = store.steps()
    pruner(store, Wanted(every=10)).make_room(size, GENERATION)

    assert first == (40, 30, 20, 10)
    assert store.steps() == (40, 30, 20)


def test_nothing_goes_before_a_newer_step_was_read_back(store: CheckpointStore) -> None:
    add(store, 10, 20, 30)
    for step in (20, 30):
        store.disk.remove_file(store.directory / step_name(step) / "shard-00000-of-00001.h5")

    pruner(store).make_room(10**9, GENERATION)

    assert store.steps() == (30, 20, 10)
    assert restore_newest(store)[0] is not None


def test_step_that_was_read_back_is_not_read_again(
    store: CheckpointStore, files: SmallDisk
) -> None:
    size = add(store, 10, 20, 30)
    before = len(files.calls)

    pruner(store, read=[30]).make_room(size, GENERATION)

    assert not any("uncache" in call for call in files.calls[before:])
    assert store.steps() == (30, 20)


def test_another_runs_steps_stay(store: CheckpointStore) -> None:
    add(store, 3, 4, run_id="other")
    add(store, 10, 20, 30)

    pruner(store).make_room(10**9, GENERATION)

    assert store.steps() == (30, 20, 4, 3)


def test_store_that_cannot_be_listed_is_a_reason_and_no_error(
    store: CheckpointStore, files: SmallDisk
) -> None:
    add(store, 10)
    files.fail_at(len(files.calls), errno.EIO)

    (reason,) = pruner(store).make_room(1, GENERATION)

    assert "cannot list" in reason


def crowded() -> tuple[SmallDisk, CheckpointStore]:
    """Return a disk with steps to keep, steps that may go, and leftovers of every kind."""
    files = SmallDisk()
    store = CheckpointStore(Path("/run/job"), files)
    add(store, 4, 5, 10, 20, 30, 40)
    set_aside(store, 4, 5)
    leave_staging(store, StagingName(50, GENERATION, 1))
    store.disk.fsync_directory(store.directory)
    return files, store


def calls_of_making_room() -> range:
    files, store = crowded()
    first = len(files.calls)
    pruner(store).make_room(10**9, GENERATION)
    return range(first, len(files.calls))


@pytest.mark.parametrize("survival", list(Survival))
def test_power_cut_while_room_is_made_costs_no_step_that_stays(survival: Survival) -> None:
    for call in calls_of_making_room():
        files, store = crowded()
        files.cut_power_at(call)
        with pytest.raises(PowerCut):
            pruner(store).make_room(10**9, GENERATION)

        after = CheckpointStore(Path("/run/job"), files.after_power_cut(survival, call))

        assert {40, 30} <= set(after.steps())
        for step in after.steps():
            after.scan(step).verify()
        pruner(after).make_room(10**9, GENERATION)
        assert after.steps() == (40, 30)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_call_that_fails_while_room_is_made_costs_no_step_that_stays(number: int) -> None:
    for call in calls_of_making_room():
        files, store = crowded()
        files.fail_at(call, number)

        pruner(store).make_room(10**9, GENERATION)

        assert {40, 30} <= set(store.steps())
        for step in (40, 30):
            store.scan(step).verify()
