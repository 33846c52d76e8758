"""Who saves what, when the workers of a launch are halted."""

from __future__ import annotations

import pytest

from holdfast.recovery.launch import Halted, HaltPlan, Held, plan_halt
from holdfast.recovery.world import WorkerId


def halted(
    worker: int, step: int | None, *, settled: bool = True, world: int = 1, saved: bool = False
) -> Halted:
    held = None if step is None else Held(step, settled, world)
    return Halted(WorkerId(worker), held, saves=worker, is_saved=saved)


@pytest.mark.parametrize(
    ("workers", "savers", "attempt"),
    [
        ([halted(0, 7), halted(1, 7), halted(2, 7)], (0, 1, 2), 3),
        ([halted(0, 7), halted(1, 8)], (1,), 2),
        ([halted(2, 8), halted(0, 8, settled=False), halted(1, 8)], (1, 2), 3),
        ([halted(0, 8, world=2), halted(1, 8), halted(2, 8, world=2)], (0, 2), 3),
        ([halted(0, None), halted(1, 3)], (1,), 2),
        ([halted(0, 7, saved=True), halted(1, 7, saved=True)], (0, 1), 0),
        ([halted(0, 7, saved=True), halted(1, 8)], (1,), 2),
        ([halted(0, None, saved=True), halted(1, None, saved=True)], (0, 1), 0),
    ],
    ids=[
        "all hold the same",
        "one has applied another step",
        "callbacks are over for some",
        "some have repaired their world already",
        "one gets the state of another",
        "it is saved",
        "only the older state is saved",
        "nobody has trained",
    ],
)
def test_newest_state_is_saved_by_all_that_hold_it(
    workers: list[Halted], savers: tuple[int, ...], attempt: int
) -> None:
    assert plan_halt(workers) == HaltPlan(tuple(map(WorkerId, savers)), attempt)
