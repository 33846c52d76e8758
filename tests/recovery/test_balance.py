"""How many microbatches each worker computes, from what all have measured."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.recovery.balance import (
    FIRST_LOOK,
    LEAST_GAIN,
    PATIENCE,
    Balance,
    Pace,
    counts_of,
    deal,
    longest_s,
)
from holdfast.recovery.world import WorkerId, World, assign

SECONDS = st.floats(1e-4, 10.0)


def world_of(workers: int, spares: int = 0) -> World:
    ids = tuple(map(WorkerId, range(workers + spares)))
    return World(1, ids, workers)


def looked(balance: Balance, seconds: list[float], looks: int = 1, more_s: float = 0.0) -> Balance:
    """Return the balance after looks at workers that compute at these speeds."""
    for _ in range(looks):
        step_s = longest_s(balance.assignment, balance.world, seconds) + more_s
        balance = balance.looked([Pace(each_s, step_s) for each_s in seconds])
    return balance


@pytest.mark.parametrize(
    ("microbatches", "seconds", "counts"),
    [
        (8, [1.0, 1.0], (4, 4)),
        (8, [1.0, 2.0], (5, 3)),
        (16, [1.0, 2.0], (11, 5)),
        (16, [1.0, 1.0, 1.0, 2.0], (5, 5, 4, 2)),
        (16, [2.0, 1.0, 1.0, 1.0], (2, 5, 5, 4)),
        (4, [1.0, 100.0], (3, 1)),
        (3, [1.0, 2.0], (2, 1)),
    ],
)
def test_slower_workers_get_fewer_microbatches_and_each_gets_one(
    microbatches: int, seconds: list[float], counts: tuple[int, ...]
) -> None:
    world = world_of(len(seconds))
    assert counts_of(deal(microbatches, world, seconds), world) == counts


@given(st.lists(SECONDS, min_size=1, max_size=4), st.integers(0, 6))
def test_no_other_deal_ends_sooner(seconds: list[float], more: int) -> None:
    world, microbatches = world_of(len(seconds)), len(seconds) + more
    dealt = deal(microbatches, world, seconds)

    runs = [list(run) for _, run in itertools.groupby(dealt.owners)]
    assert [run[0] for run in runs] == list(world.active), "each has one run, in rank order"
    best_s = min(
        max(count * each_s for count, each_s in zip(counts, seconds, strict=True))
        for counts in itertools.product(range(1, microbatches + 1), repeat=len(seconds))
        if sum(counts) == microbatches
    )
    assert longest_s(dealt, world, seconds) == best_s


@given(st.integers(1, 9), st.integers(0, 40), SECONDS)
def test_workers_of_one_speed_are_dealt_what_they_have(
    workers: int, more: int, each_s: float
) -> None:
    world = world_of(workers)
    assert deal(workers + more, world, [each_s] * workers) == assign(workers + more, world)


def test_a_gain_counts_when_several_looks_in_a_row_promise_it() -> None:
    begun = Balance.begin(8, world_of(2))
    nearly = looked(begun, [1.0, 2.0], PATIENCE - 1)
    assert nearly.assignment == begun.assignment
    assert looked(nearly, [1.0, 1.0]).agreed == 0, "it was noise"

    dealt = looked(nearly, [1.0, 2.0])

    assert counts_of(dealt.assignment, dealt.world) == (5, 3)
    assert looked(dealt, [1.0, 2.0], looks=9).assignment == dealt.assignment


@pytest.mark.parametrize(
    ("seconds", "more_s"),
    [
        pytest.param([1.0, 1.1], 0.0, id="hardly slower"),
        pytest.param([1.0, 2.0], 2 / LEAST_GAIN, id="steps do not take their time for computing"),
        pytest.param([1.0, 0.0], 0.0, id="nothing is known of one"),
    ],
)
def test_nothing_shifts_that_gains_nothing(seconds: list[float], more_s: float) -> None:
    begun = Balance.begin(8, world_of(2))
    assert looked(begun, seconds, 9, more_s).assignment == begun.assignment


def test_each_deal_needs_twice_as_many_looks_as_the_one_before() -> None:
    balance, needed = Balance.begin(8, world_of(2)), []
    for seconds in ([1.0, 2.0], [2.0, 1.0], [1.0, 2.0]):
        before, looks = balance.assignment, 0
        while balance.assignment == before:
            balance, looks = looked(balance, seconds), looks + 1
        balance = looked(balance, seconds)  # steps are shorter
        needed.append(looks)
    assert needed == [PATIENCE, 2 * PATIENCE, 4 * PATIENCE]


def test_deal_after_which_steps_are_no_shorter_is_taken_back() -> None:
    paces = [Pace(1.0, 9.0), Pace(2.0, 9.0)]
    begun = dealt = Balance.begin(8, world_of(2))
    for _ in range(PATIENCE):
        dealt = dealt.looked(paces)
    assert dealt.assignment != begun.assignment

    back = dealt.looked(paces)

    assert back.assignment == begun.assignment
    for _ in range(PATIENCE):
        back = back.looked(paces)
    assert back.assignment == begun.assignment, "the next one needs twice as many looks"


def test_spares_have_no_part() -> None:
    balance = Balance.begin(8, world_of(2, spares=1))
    for _ in range(PATIENCE):
        balance = balance.looked([Pace(1.0, 8.0), Pace(2.0, 8.0), Pace(0.0, 8.0)])
    assert set(balance.assignment.owners) == set(balance.world.active)
    assert counts_of(balance.assignment, balance.world) == (5, 3)


@pytest.mark.parametrize(
    ("workers", "microbatches", "can"), [(1, 8, False), (4, 4, False), (4, 3, False), (4, 5, True)]
)
def test_nothing_can_shift_without_a_microbatch_more_than_workers(
    workers: int, microbatches: int, *, can: bool
) -> None:
    assert Balance.begin(microbatches, world_of(workers)).can_shift is can


@pytest.mark.parametrize(
    ("step_s", "commits"), [(0.001, 1000), (1.0, FIRST_LOOK), (60.0, FIRST_LOOK)]
)
def test_looks_are_seconds_apart_or_some_steps(step_s: float, commits: int) -> None:
    paces = [Pace(step_s / 4, step_s)] * 2
    assert Balance.begin(8, world_of(2)).looked(paces).next_look == commits
