"""Whose script has ended while another worker trains once more, as a table."""

from __future__ import annotations

import itertools

import pytest

from holdfast.recovery.stall import ScriptView, find_apart
from holdfast.recovery.world import WorkerId

ENDED, GOING = True, False


def scripts(*ways: tuple[int, bool]) -> list[ScriptView]:
    return [ScriptView(WorkerId(number), *way) for number, way in enumerate(ways)]


@pytest.mark.parametrize(
    "ways",
    [
        [],
        [(0, GOING)],
        [(3, ENDED)],
        [(3, ENDED), (3, ENDED)],
        [(3, ENDED), (3, GOING)],
        [(0, ENDED), (0, GOING)],
        [(1, GOING), (4, GOING)],
        [(1, GOING), (4, ENDED)],
        [(1, GOING), (4, ENDED), (4, GOING)],
    ],
)
def test_worker_that_may_still_come_is_waited_for(ways: list[tuple[int, bool]]) -> None:
    assert find_apart(scripts(*ways)) is None


@pytest.mark.parametrize(
    ("ways", "ended", "ahead"),
    [
        ([(3, ENDED), (4, GOING)], 0, 1),
        ([(4, GOING), (3, ENDED)], 1, 0),
        ([(4, ENDED), (3, ENDED)], 1, 0),
        ([(0, ENDED), (1, GOING), (1, GOING)], 0, 1),
        ([(2, ENDED), (3, GOING), (1, ENDED), (4, GOING)], 2, 3),
        ([(1, GOING), (2, ENDED), (3, GOING)], 1, 2),
    ],
)
def test_script_that_has_ended_before_another_one_trains_again_is_named(
    ways: list[tuple[int, bool]], ended: int, ahead: int
) -> None:
    for order in itertools.permutations(scripts(*ways)):
        apart = find_apart(order)

        assert apart is not None
        assert (apart.ended.worker, apart.ahead.worker) == (ended, ahead)


@pytest.mark.parametrize(
    ("begun", "words"), [(0, "no training"), (1, "1 training"), (3, "3 trainings")]
)
def test_message_has_both_workers_and_both_numbers(begun: int, words: str) -> None:
    apart = find_apart(scripts((begun + 2, GOING), (begun, ENDED)))

    assert apart is not None
    assert apart.message.startswith(
        f"worker 1 ended its script after {words}, but worker 0 began training {begun + 2}, "
    )
