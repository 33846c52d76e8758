"""Which deaths have something in common, and which do not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.evidence.repeats import (
    repeated_places,
    repeated_samples,
    repeated_step,
)


def death(worker: int, step: int, *ids: int, microbatch: int = 1, **more: Any) -> dict[str, Any]:
    samples = {
        "step": step + 1,
        "microbatch": microbatch,
        "count": len(ids),
        "ids": list(ids),
        "is_validation": False,
    }
    return {"worker": worker, "step": step, "samples": samples if ids else None, **more}


def test_step_that_kills_its_workers_one_by_one_is_named_with_its_samples() -> None:
    failures = [death(9, 3), death(0, 7, 5, 17), death(1, 7, 5, 17), death(4, 7, 5, 17)]

    found = repeated_step(failures)

    assert str(found) == (
        "step 8 has killed workers 0, 1, 4 while they computed microbatch 1, samples 5, 17"
    )


@pytest.mark.parametrize("phase", ["starting", "joining", "restoring"])
def test_deaths_of_workers_that_could_not_begin_accuse_no_step(phase: str) -> None:
    assert repeated_step([death(1, 0, phase=phase), death(0, 0, phase=phase)]) is None
    assert repeated_step([death(1, 0, phase="compiling"), death(0, 0, phase="compiling")])


def test_one_death_is_no_repetition() -> None:
    assert repeated_step([]) is None
    assert repeated_step([death(0, 7, 5)]) is None


def test_deaths_at_different_steps_have_no_step_in_common() -> None:
    assert repeated_step([death(0, 7, 5), death(1, 8, 5)]) is None


def test_workers_that_were_killed_with_others_do_not_count() -> None:
    failures = [death(0, 7, 5), death(1, 7, 6, collateral=True)]

    assert repeated_step(failures) is None
    assert (
        repeated_places([death(0, 7, core=3, collateral=True) for _ in range(9)], ranks=8, cores=8)
        == ()
    )


def test_step_without_samples_in_hand_is_named_alone() -> None:
    assert str(repeated_step([death(0, 7), death(1, 7)])) == "step 8 has killed workers 0, 1"


def test_many_samples_are_counted_and_not_listed() -> None:
    failures = [death(w, 0, *range(100)) for w in (0, 1)]

    assert str(repeated_step(failures)).endswith("18, 19 and 80 more")


def test_sample_that_comes_back_in_each_epoch_is_found_in_its_company() -> None:
    failures = [
        death(0, 7, 5, 100, 3),
        death(1, 23, 100, 8, 9, microbatch=2),
        death(2, 31, 7, 100, microbatch=0),
    ]

    found = repeated_samples(failures)

    assert found is not None
    assert str(found) == "each of workers 0, 1, 2 died while it computed samples 100"


@pytest.mark.parametrize(
    "failures",
    [
        [],
        [death(0, 7, 5), death(1, 9, 5)],
        [death(0, 7, 5), death(1, 7, 5), death(2, 7, 5)],
        [death(0, 7, 5), death(1, 9, 6), death(2, 11, 5)],
    ],
    ids=["none", "too few", "one microbatch: its step is named", "nothing in common"],
)
def test_samples_are_not_blamed_without_reason(failures: list[dict[str, Any]]) -> None:
    assert repeated_samples(failures) is None


def test_core_that_loses_far_more_workers_than_the_others_is_named() -> None:
    failures = [death(n, n, core=5, launch_rank=n % 16) for n in range(3)]

    (place,) = repeated_places(failures, ranks=16, cores=16)

    assert str(place) == "core 5 has lost 3 workers"


def test_rank_that_dies_in_each_launch_is_named() -> None:
    failures = [death(4 * n + 2, n, core=n, launch_rank=2) for n in range(3)]

    (place,) = repeated_places(failures, ranks=4, cores=64)

    assert str(place) == "rank 2 has lost 3 workers"


@given(st.lists(st.integers(0, 1), max_size=30))
def test_on_two_cores_no_core_is_ever_named(cores: list[int]) -> None:
    failures = [death(n, n, core=core) for n, core in enumerate(cores)]

    assert repeated_places(failures, ranks=1, cores=2) == ()


@given(st.integers(1, 20), st.integers(2, 20))
def test_launches_that_die_whole_blame_no_rank(launches: int, ranks: int) -> None:
    failures = [
        death(rank, launch, launch_rank=rank) for launch in range(launches) for rank in range(ranks)
    ]

    assert ranks < 3 or repeated_places(failures, ranks=ranks, cores=1) == ()
