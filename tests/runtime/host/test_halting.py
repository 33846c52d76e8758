"""How the workers of a launch leave together after an order to stop."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.recovery.event import WorkerFailed, WorkerStopped
from holdfast.recovery.placement import WHOLE_SAVE, SavePart
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.halting import Halting
from holdfast.runtime.system.worker_status import HaltOrder, Phase, WorkerHalted, WorkerStatus


class FakeWorker:
    """A worker that answers when the test says so."""

    def __init__(self, worker: int, phase: Phase = Phase.TRAINING, host: str = "") -> None:
        self.worker = WorkerId(worker)
        self.host = host
        self.page = WorkerStatus.create()
        self.page.phase = phase
        self.page.generation = 1
        self.page.step = 7
        self.halted: WorkerHalted | None = None
        self.halt_failure: str | None = None
        self.killed = ""

    def kill(self, why: str) -> None:
        self.killed = why

    def holds(
        self, step: int, *, is_saved: bool = False, words: str = "more is done again"
    ) -> None:
        self.halted = WorkerHalted(self.worker, step, True, 4, is_saved, step, words)


class Launch:
    """Some workers, the order, and what was told of them."""

    def __init__(self, *workers: FakeWorker) -> None:
        self.workers = workers
        self.told: list[WorkerStopped | WorkerFailed] = []
        host_of = {worker.worker: worker.host for worker in workers}
        self.halting = Halting(self.told.append, host_of)
        self.halting.order(100.0)

    def poll(self, now: float) -> list[bool]:
        living: Any = [one for one in self.workers if not one.killed]
        self.halting.poll(living, now)
        return [one.page.is_halt_asked for one in self.workers]

    def words(self) -> list[tuple[int, str]]:
        return [
            (each.worker, each.message if isinstance(each, WorkerFailed) else each.describe())
            for each in self.told
        ]


def test_newest_state_is_saved_by_its_holders_and_all_leave_afterwards() -> None:
    ahead, too, behind = (FakeWorker(number) for number in range(3))
    launch = Launch(ahead, too, behind)

    assert launch.poll(102.9) == [False] * 3
    assert launch.poll(103.0) == [True] * 3
    ahead.holds(8)
    behind.holds(7)
    launch.poll(103.5)
    assert not ahead.page.halt_orders  # one may hold more
    too.holds(8)
    launch.poll(104.0)
    assert [one.page.halt_order for one in (ahead, too)] == [
        HaltOrder(5, SavePart(part=0, parts=2)), HaltOrder(5, SavePart(part=1, parts=2)),
    ]  # fmt: skip
    assert not behind.page.halt_orders
    ahead.halt_failure = ""
    launch.poll(104.5)
    assert not launch.told
    too.halt_failure = ""
    launch.poll(105.0)
    launch.poll(105.5)

    assert [one.page.halt_order for one in launch.workers] == [HaltOrder()] * 3
    assert launch.words() == [(who, "saved step 8; more is done again") for who in (0, 1)]


def test_newest_state_is_saved_by_two_hosts_and_after_the_loss_of_one_by_the_other() -> None:
    one, other, far = FakeWorker(0, host="a"), FakeWorker(1, host="a"), FakeWorker(2, host="b")
    launch = Launch(one, other, far)
    launch.poll(103.0)
    for worker in launch.workers:
        worker.holds(8)
    launch.poll(103.1)

    assert [worker.page.halt_order for worker in launch.workers] == [
        HaltOrder(5, SavePart(0, 2, 0, 2)), HaltOrder(5, SavePart(0, 2, 1, 2)),
        HaltOrder(5, SavePart(1, 2, 0, 1)),
    ]  # fmt: skip

    one.killed = other.killed = "its host is lost"
    launch.poll(103.2)
    assert far.page.halt_order == HaltOrder(6, WHOLE_SAVE)
    far.halt_failure = ""
    launch.poll(103.3)
    assert launch.words() == [(2, "saved step 8; more is done again")]


def test_worker_that_does_not_answer_is_killed_and_the_others_save() -> None:
    well, hangs = FakeWorker(0), FakeWorker(1)
    launch = Launch(well, hangs)
    launch.poll(103.0)
    well.holds(8)

    launch.poll(105.9)
    assert not hangs.killed
    launch.poll(106.1)
    launch.poll(106.2)

    assert hangs.killed == "it did not answer the order to stop"
    assert well.page.halt_order == HaltOrder(5, WHOLE_SAVE)
    assert well.page.halt_orders == 1


def test_death_of_a_saver_begins_the_save_anew() -> None:
    one, other = FakeWorker(0), FakeWorker(1)
    launch = Launch(one, other)
    launch.poll(103.0)
    one.holds(8)
    other.holds(8)
    launch.poll(103.1)
    other.killed = "by somebody"
    one.halt_failure = "another worker has died meanwhile"

    launch.poll(103.2)

    assert one.page.halt_order == HaltOrder(6, WHOLE_SAVE)
    assert one.halt_failure is None


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (None, [(0, "it was saved before"), (1, "it was saved before")]),
        ("no space is left", [
            (worker, "step 8 could not be saved: no space is left; run again: the run goes on "
            "from its newest checkpoint") for worker in (0, 1)
        ]),
    ],
)  # fmt: skip
def test_end_says_what_was_saved(failure: str | None, expected: list[tuple[int, str]]) -> None:
    launch = Launch(FakeWorker(0), FakeWorker(1))
    launch.poll(103.0)
    for worker in launch.workers:
        worker.holds(8, is_saved=failure is None, words="it was saved before")
    launch.poll(103.1)
    for worker in launch.workers:
        worker.halt_failure = failure
    launch.poll(103.2)

    assert launch.words() == expected
    assert {worker.page.halt_order for worker in launch.workers} == {HaltOrder()}


@pytest.mark.parametrize(
    ("phase", "asked_after_s"),
    [(Phase.RESTORING, 3.0), (Phase.STARTING, 4.0), (Phase.CONCLUDING, 4.0), (Phase.SAVING, None)],
)
def test_script_has_a_moment_to_end_and_a_last_save_its_own_bound(
    phase: Phase, asked_after_s: float | None
) -> None:
    launch = Launch(FakeWorker(0, phase))

    if asked_after_s is None:
        assert launch.poll(10_000.0) == [False]
    else:
        assert launch.poll(100.0 + asked_after_s - 0.1) == [False]
        assert launch.poll(100.0 + asked_after_s) == [True]


def test_no_worker_that_answers_ends_the_launch() -> None:
    beating, silent = FakeWorker(0), FakeWorker(1)
    launch = Launch(beating, silent)
    launch.poll(103.0)
    beating.page.beat()

    launch.poll(107.0)
    assert (beating.killed, silent.killed) == ("", "it did not answer the order to stop")
    launch.poll(164.0)

    assert beating.killed == "it did not answer the order to stop"
    assert launch.words() == [
        (0, "stopped at step 7: no worker answered the order to stop, so what came after the "
         "newest checkpoint is lost"),
    ]  # fmt: skip
