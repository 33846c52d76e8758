"""Space is bytes or a share; the oldest steps go until the rest fits, and two always stay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.known_steps import KnownStep, OwnSteps, ReadMarks
from holdfast.checkpoint.manifest import EpochMetrics
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.retention import Best, Pruner, Retention, Wanted, prune_plan
from holdfast.checkpoint.space import Space, steps_too_many
from holdfast.checkpoint.store import CheckpointStore, save


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


SIZES = st.dictionaries(st.integers(0, 50), st.integers(0, 100), max_size=12)


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


RETENTIONS = st.builds(
    Retention,
    st.integers(1, 6),
    st.builds(Wanted, st.none() | st.integers(1, 9)).map(lambda wanted: (wanted,)),
    st.frozensets(st.integers(0, 60)),
)


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
def files() -> FakeFileSystem:
    return FakeFileSystem()


@pytest.fixture
def store(files: FakeFileSystem) -> CheckpointStore:
    return CheckpointStore(Path("/run/job"), files)


def add(store: CheckpointStore, *steps: int, run_id: str = "run") -> int:
    """Save steps of one size, and return that size."""
    for step in steps:
        metrics = EpochMetrics.join(1, step, {"loss": step}, {})
        header = Header(run_id, 1, step)
        save(store, {"weights": np.arange(4000)}, header=header, cursor=metrics.into({}))
    return store.scan(steps[-1]).manifest().nbytes


def pruner(store: CheckpointStore, space: Space, *wanted: Wanted) -> Pruner:
    return Pruner(OwnSteps(store, "run"), Retention(99, wanted, space=space), ReadMarks())


def test_steps_of_a_run_fit_into_their_space(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30, 40, 50)

    assert pruner(store, Space(3 * size)).prune(0.0) == ()

    assert store.steps() == (50, 40, 30)


def test_share_is_one_of_the_file_system(store: CheckpointStore, files: FakeFileSystem) -> None:
    files.capacity_bytes = 8 * add(store, 10, 20, 30, 40, 50)

    assert pruner(store, Space.parse("50%")).prune(0.0) == ()

    assert store.steps() == (50, 40, 30, 20)


def test_step_that_was_to_stay_for_ever_is_told_when_it_goes(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30, 40, 50)

    reasons = pruner(store, Space(2 * size), Wanted(40, Best("loss"))).prune(0.0)

    assert store.steps() == (50, 40)
    assert reasons == (
        "step 10 was to be kept for ever and is removed: the checkpoints take more space than "
        "--keep-space allows",
    )


def test_space_that_two_steps_exceed_is_told_once(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30)
    keeper = pruner(store, Space(size))

    (told,) = keeper.prune(0.0)

    assert f"take {size} bytes more than --keep-space allows" in told
    assert store.steps() == (30, 20)
    assert keeper.prune(1.0) == ()


def test_damaged_steps_that_were_moved_aside_count(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30, 40, 50)
    directory = store.directory
    store.disk.rename(directory / "step-000000000030", directory / ".bad-000000000030-g1-a1")

    pruner(store, Space(7 * size // 2)).prune(0.0)

    assert store.steps() == (50, 40)
    assert ".bad-000000000030-g1-a1" in store.names()


def test_nothing_goes_for_space_before_a_newer_step_was_read_back(store: CheckpointStore) -> None:
    size = add(store, 10, 20, 30)
    for step in (20, 30):
        store.disk.remove_file(store.directory / f"step-{step:012d}" / "shard-00000-of-00001.h5")

    reasons = pruner(store, Space(size)).prune(0.0)

    assert store.steps() == (30, 20, 10)
    assert "step 30 does not verify" in reasons[0]


def test_steps_of_another_run_neither_count_nor_go(store: CheckpointStore) -> None:
    add(store, 5, 15, run_id="other")
    size = add(store, 10, 20, 30)

    pruner(store, Space(2 * size)).prune(0.0)

    assert store.steps() == (30, 20, 15, 5)


def test_store_without_a_step_needs_no_capacity(store: CheckpointStore) -> None:
    assert pruner(store, Space.parse("1%")).prune(0.0) == ()
