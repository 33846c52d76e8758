"""Workers that stand still are asked first and killed then, with a clock of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pytest

from holdfast.recovery.event import Event, WorkInHand
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host import worker_process as module
from holdfast.runtime.host.fencing import Fencing
from holdfast.runtime.host.host_messages import Found, Inquire
from holdfast.runtime.host.worker_process import SilenceWatch
from holdfast.runtime.run.events import Stalled, Suspected, WorkerFenced
from holdfast.runtime.system.worker_status import Phase, WorkerStatus
from holdfast.runtime.worker.stacks import MOST_S, Frame, Stacks, Thread

SEEN = Stacks((Thread("main thread", (Frame("/home/ann/train.py", "42", "contribute"),)),))

T = TypeVar("T")


def work_of(worker: int) -> WorkInHand:
    return WorkInHand(1, worker, 1, (3,), is_validation=False)


class FakeWorker:
    """A worker that lives as long as nobody kills it, as its host and as its launch know it."""

    def __init__(self, worker: int, host: FakeHost) -> None:
        self.host = host
        self.generation = 1
        self.failure = ""
        self.characters_read = 0
        self.worker = WorkerId(worker)
        self.pid = 100 + worker
        self.page = WorkerStatus.create()
        self.page.phase = Phase.TRAINING
        self.page.commit(6)
        self.page.commit(7)
        self.stacks = Stacks()
        self.place = ""
        self.host_name = ""
        self.limit: str | None = None
        self.is_buried = self.is_condemned = False
        self.may_leave = False
        self.samples = work_of(worker)
        self.causes: list[str] = []

    @property
    def is_gone(self) -> bool:
        return self.is_buried

    def kill(self, why: str, limit: str | None = None) -> None:
        self.is_condemned = True
        self.limit = limit
        self.causes.append(why)


class FakeHost:
    """The host of the workers: it asks them what they do."""

    def __init__(self, world: World) -> None:
        self._world = world

    def post(self, message: Inquire, fds: Sequence[int] = ()) -> None:
        for worker in message.workers:
            asked: Any = self._world.workers[worker]
            answer = partial(self._answer, message.case, asked)
            self._world.silence.ask(asked, answer, is_evidence=message.is_evidence)
        self._world.silence.answer_known()

    def _answer(self, case: int, asked: Any, inquiry: FakeInquiry) -> None:
        seen = inquiry.stacks
        about = (seen.where, str(seen), seen.is_reading, asked.samples)
        self._world.fencing.found(Found(case, 1, asked.worker, *about))


class FakeInquiry:
    """An inquiry whose answer comes when the test wants it."""

    all: list[FakeInquiry] = []  # noqa: RUF012  (cleared by the fixture)

    def __init__(self, pid: int, page: WorkerStatus, now: float) -> None:
        self.pid = pid
        self.began = now
        self.stacks = Stacks()
        self.is_over = False
        self.all.append(self)

    def answer(self) -> None:
        self.stacks, self.is_over = SEEN, True

    def poll(self, now: float) -> None:
        self.is_over = self.is_over or now - self.began >= MOST_S


class World:
    """Three workers that are looked at ten times a second."""

    def __init__(self) -> None:
        self.told: list[Event] = []
        self.workers = [FakeWorker(n, FakeHost(self)) for n in range(3)]
        self.tries: list[Callable[[bool], None]] = []
        self.are_hosts_many = False
        self.fencing = Fencing(self.told.append, 2.0, self.try_pairs)
        self.silence = SilenceWatch(
            self.told.append, lambda worker, why, limit: worker.kill(why, limit), 2.0
        )
        self.now = 50.0
        self.read: dict[int, int] = {}

    def try_pairs(self, then: Callable[[bool], None]) -> None:
        if self.are_hosts_many:
            self.tries.append(then)
        else:
            then(False)

    def pass_time(self, seconds: float, *beating: int) -> None:
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            for worker in beating:
                self.workers[worker].page.beat()
            living: Any = [w for w in self.workers if not w.is_condemned]
            is_one_silent = self.silence.poll(living, self.now)
            for worker in self.workers:
                worker.characters_read = self.read.get(worker.pid, 0)
            self.fencing.poll(living, self.now, are_halted=False, is_one_silent=is_one_silent)

    def begin(self, stall_timeout_s: float | None) -> None:
        self.fencing.begin(stall_timeout_s)
        self.silence.forget()

    @property
    def is_inquiring(self) -> bool:
        return self.fencing.is_inquiring or self.silence.is_inquiring

    def of_kind(self, kind: type[T]) -> list[T]:
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(module, "Inquiry", FakeInquiry)
    world = World()
    yield world
    FakeInquiry.all.clear()
    for worker in world.workers:
        worker.page.close()


def test_silent_worker_is_killed_when_its_stacks_are_known(world: World) -> None:
    world.begin(0.0)
    world.pass_time(2.2, 1, 2)
    assert world.is_inquiring
    assert world.told == []

    FakeInquiry.all[0].answer()
    world.pass_time(0.1, 1, 2)

    (fenced,) = world.of_kind(WorkerFenced)
    assert (fenced.worker, fenced.limit) == (0, "heartbeat")
    assert fenced.where == "contribute (train.py:42)"
    assert world.workers[0].stacks is SEEN
    assert [cause[:13] for cause in world.workers[0].causes] == ["fenced after "]
    assert world.workers[0].causes[0].endswith(" s of silence")
    assert not world.is_inquiring


@pytest.mark.parametrize("beating", [(1, 2), (0, 1, 2)], ids=["silent", "beats again"])
def test_silent_worker_that_answers_nothing_is_killed_all_the_same(
    world: World, beating: tuple[int, ...]
) -> None:
    world.begin(0.0)
    world.pass_time(2.2, 1, 2)

    world.pass_time(MOST_S + 0.1, *beating)

    (fenced,) = world.of_kind(WorkerFenced)
    assert (fenced.worker, fenced.where) == (0, "")
    assert world.workers[0].is_condemned


def test_worker_that_dies_while_it_is_asked_is_not_fenced(world: World) -> None:
    world.begin(0.0)
    world.pass_time(2.2, 1, 2)

    world.workers[0].is_buried = world.workers[0].is_condemned = True
    world.pass_time(MOST_S + 0.1, 1, 2)

    assert world.told == []
    assert not world.is_inquiring


def test_another_launch_forgets_what_was_asked_of_the_one_before(world: World) -> None:
    world.begin(0.0)
    world.pass_time(2.2, 1, 2)

    world.begin(0.0)

    assert not world.is_inquiring


def all_wait_for_worker_0(world: World) -> None:
    for worker in world.workers:
        worker.page.begin_turn(waits_for_peers=worker.worker != 0)


def test_worker_that_all_wait_for_is_told_and_then_killed(world: World) -> None:
    world.begin(20.0)
    all_wait_for_worker_0(world)

    world.pass_time(19.0, 0, 1, 2)
    (suspected,) = world.of_kind(Suspected)
    assert (suspected.worker, suspected.limit_s) == (0, 20.0)
    assert suspected.samples == work_of(0)
    assert world.of_kind(WorkerFenced) == []

    world.pass_time(1.0 + 3 * MOST_S, 0, 1, 2)
    (fenced,) = world.of_kind(WorkerFenced)
    assert (fenced.worker, fenced.limit) == (0, "stall")
    assert world.workers[0].causes[0].endswith(" s at one piece of work")
    assert len(world.of_kind(Suspected)) == 1


def test_place_of_a_worker_that_all_wait_for_is_found_out_once_for_people(world: World) -> None:
    world.begin(None)
    all_wait_for_worker_0(world)

    world.pass_time(5.2, 0, 1, 2)
    FakeInquiry.all[0].answer()
    world.pass_time(30.0, 0, 1, 2)

    assert world.fencing.standing_s() == {0: pytest.approx(35.0, abs=0.3)}
    assert world.workers[0].place == "contribute (train.py:42)"
    assert world.workers[0].stacks == Stacks()  # those of its death are another matter
    assert len(FakeInquiry.all) == 1
    assert world.told == []
    world.workers[0].page.begin_turn(waits_for_peers=True)
    world.pass_time(0.1, 0, 1, 2)
    assert world.fencing.standing_s() == {}


def fails(world: World, *workers: int) -> None:
    for worker in workers:
        world.workers[worker].page.begin_turn(waits_for_peers=False)
        world.workers[worker].page.phase = Phase.FAILED


def test_worker_whose_training_has_failed_is_killed_if_all_others_wait_for_it(world: World) -> None:
    world.begin(0.0)  # no limit for stalls: nobody needs to guess here
    all_wait_for_worker_0(world)
    fails(world, 0)
    world.workers[0].failure = "ValueError: odd"

    world.pass_time(2.0, 0, 1, 2)
    assert world.told == []
    world.pass_time(0.4 + MOST_S, 0, 1, 2)

    (fenced,) = world.of_kind(WorkerFenced)
    assert (fenced.worker, fenced.limit) == (0, "failed")
    caught = " s in its script, which has caught the error of its training: ValueError: odd"
    assert world.workers[0].causes[0].endswith(caught)


def test_nobody_is_killed_while_another_one_trains_or_if_all_have_failed_alike(
    world: World,
) -> None:
    world.begin(0.0)
    all_wait_for_worker_0(world)
    fails(world, 1)
    world.pass_time(20.0, 0, 1, 2)

    fails(world, 0, 2)
    world.pass_time(20.0, 0, 1, 2)

    assert world.told == []


@pytest.mark.parametrize(
    ("phase", "limit_s"),
    [
        *((Phase.TRAINING, 0.0), (Phase.RESTORING, 2.0), (Phase.CONCLUDING, 2.0)),
        (Phase.LEAVING, 2.0),
    ],
)
def test_worker_without_a_limit_or_outside_the_loop_may_take_its_time(
    world: World, phase: Phase, limit_s: float
) -> None:
    world.begin(limit_s)
    all_wait_for_worker_0(world)
    world.workers[0].page.phase = phase

    world.pass_time(500.0, 0, 1, 2)

    assert world.told == []


def test_launch_whose_workers_wait_for_each_other_ends_with_all_their_stacks(world: World) -> None:
    world.begin(2.0)
    for worker in world.workers:
        worker.page.begin_turn(waits_for_peers=True)

    world.pass_time(10.3, 0, 1, 2)
    assert len(FakeInquiry.all) == 3
    for inquiry in FakeInquiry.all:
        inquiry.answer()
    world.pass_time(0.1, 0, 1, 2)

    (stalled,) = world.of_kind(Stalled)
    assert stalled.workers == (0, 1, 2)
    assert [worker.limit for worker in world.workers] == ["standstill"] * 3
    assert all(worker.stacks is SEEN for worker in world.workers)


def test_launch_goes_on_after_a_death_or_while_one_computes(world: World) -> None:
    world.begin(0.0)
    for worker in world.workers:
        worker.page.begin_turn(waits_for_peers=True)
    world.pass_time(9.0, 0, 1, 2)
    world.workers[2].is_condemned = True
    world.pass_time(9.0, 0, 1)
    world.workers[0].page.begin_turn(waits_for_peers=False)
    world.pass_time(600.0, 0, 1)

    assert world.told == []


def test_launch_ends_at_a_standstill_only_if_its_hosts_reach_each_other(world: World) -> None:
    world.begin(2.0)
    world.are_hosts_many = True
    for worker in world.workers:
        worker.page.begin_turn(waits_for_peers=True)

    world.pass_time(15.0, 0, 1, 2)
    (then,) = world.tries
    then(True)  # a host was left out, so the others get on
    world.pass_time(10.2, 0, 1, 2)
    assert len(world.tries) == 2
    assert FakeInquiry.all == []

    world.tries[1](False)
    world.pass_time(0.1, 0, 1, 2)
    assert len(FakeInquiry.all) == 3


def test_workers_that_cannot_join_let_hosts_be_tried_and_are_not_killed_for_it(
    world: World,
) -> None:
    world.begin(2.0)
    world.are_hosts_many = True
    for worker in world.workers:
        worker.page.phase = Phase.JOINING

    for _ in range(2):
        world.pass_time(10.2, 0, 1, 2)
        world.tries.pop()(False)
        world.pass_time(0.2, 0, 1, 2)

    assert world.of_kind(Stalled) == []
    assert not any(worker.is_condemned for worker in world.workers)


def restore(world: World, **read: int) -> None:
    """Let all workers restore; some have read so many bytes."""
    for worker in world.workers:
        worker.page.phase = Phase.RESTORING
        world.read[worker.pid] = read.get(f"w{worker.worker}", 0)


def test_launch_ends_when_none_of_its_workers_gets_a_byte_to_restore(world: World) -> None:
    world.begin(0.0)
    restore(world, w0=100)
    world.pass_time(299.0, 0, 1, 2)
    assert world.told == []

    world.pass_time(2.0 + MOST_S, 0, 1, 2)

    (stalled,) = world.of_kind(Stalled)
    assert (stalled.limit, stalled.workers) == ("reading", (0, 1, 2))
    assert [worker.limit for worker in world.workers] == ["reading"] * 3


def test_workers_that_wait_for_one_that_reads_or_will_read_again_are_let_alone(
    world: World,
) -> None:
    world.begin(0.0)

    for read in range(8):
        restore(world, w0=read)
        world.pass_time(100.0, 0, 1, 2)
    for _ in range(8):
        with world.workers[1].page.needing_no_peer():
            world.pass_time(100.0, 0, 1, 2)

    assert world.told == []


def test_worker_that_holds_the_lock_while_it_restores_has_a_minute(world: World) -> None:
    world.begin(0.0)
    restore(world)

    world.pass_time(59.0, 1, 2)
    assert world.told == []

    world.pass_time(2.0 + MOST_S, 1, 2)
    assert [fenced.worker for fenced in world.of_kind(WorkerFenced)] == [0]


def test_workers_that_may_leave_and_do_not_are_killed_after_a_minute(world: World) -> None:
    """As long as one has not come to its end, its script may take its time."""
    world.begin(0.0)
    for worker in world.workers:
        worker.page.phase = Phase.LEAVING
    for worker in world.workers[:2]:
        worker.may_leave = True
    world.pass_time(200.0, 0, 1, 2)
    assert world.told == []

    world.workers[2].may_leave = True
    world.pass_time(59.0, 0, 1, 2)
    assert world.told == []
    world.pass_time(2.0 + MOST_S, 0, 1, 2)

    (stalled,) = world.of_kind(Stalled)
    assert (stalled.limit, stalled.workers) == ("leaving", (0, 1, 2))
    assert [worker.limit for worker in world.workers] == ["leaving"] * 3


def test_worker_that_is_killed_while_it_is_asked_for_others_holds_up_nobody(world: World) -> None:
    """Its host answers no more for it."""
    world.begin(2.0)
    for worker in world.workers:
        worker.page.begin_turn(waits_for_peers=True)
    world.pass_time(10.3, 0, 1, 2)
    for inquiry in FakeInquiry.all[1:]:
        inquiry.answer()
    world.pass_time(0.1, 0, 1, 2)
    assert world.told == []

    world.workers[0].kill("guard lost")
    world.fencing.drop(world.workers[0].worker)

    (stalled,) = world.of_kind(Stalled)
    assert stalled.workers == (1, 2)
