"""A launch on two hosts: what ends, stands still or is settled is decided over both."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import pytest
from configs import worker_config

from holdfast.recovery.errors import ExitCode
from holdfast.recovery.event import (
    CheckpointCommitted,
    HostLost,
    PreparationFailed,
    WorkerExited,
    WorkerFailed,
    WorkerJoined,
    WorkerStopped,
    WorldFormed,
    WorldNamed,
)
from holdfast.recovery.saves import (
    CommitSave,
    PartHeld,
    RemoveSave,
    SaveCommitted,
    SaveRemoved,
    SaveTicket,
    ShareWritten,
    WorkFailed,
    WriteShare,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host import host_messages
from holdfast.runtime.host.host_messages import (
    BeginLaunch,
    Described,
    Down,
    Found,
    Inquire,
    Killed,
    KillWorker,
    Lead,
    LetLeave,
    MakeWorkers,
    Met,
    NameWorld,
    News,
    Queue,
    Seen,
    Up,
    Watch,
)
from holdfast.runtime.host.hosted_launch import HostedLaunch
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink
from holdfast.runtime.host.pairs import PairTrials
from holdfast.runtime.host.pool_process import Forked, LetBegin
from holdfast.runtime.run.events import Notice, PoolRestarted, Stalled
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving.save_messages import PlanSaves
from holdfast.runtime.system.channel import Channel, pair
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.worker_status import (
    Phase,
    RequestFlag,
    ScriptEnded,
    StatusChanges,
    SurvivorsMet,
    TrainingBegun,
    WorkerStatus,
    Writer,
)

T = TypeVar("T")
LAUNCH = worker_config(0, (0, 1, 2, 3), stall_timeout_s=0.0, hosts=("", "", "b", "b"))


class FarHost:
    """A host whose processes are fakes: messages go through JSON, and statuses are mirrored."""

    name = ""
    pid = 0
    is_lost = has_ended = has_wishes = False
    unheard_s = leased_s = 0.0

    def __init__(self, queue: Queue) -> None:
        self.launch: HostedLaunch
        self._queue = queue
        self.heard: list[Down] = []
        self.statuses: dict[WorkerId, WorkerStatus] = {}
        """Those that the workers themselves write."""
        self._mirrors: dict[WorkerId, WorkerStatus] = {}
        self._changes: dict[WorkerId, tuple[StatusChanges, StatusChanges]] = {}

    def post(self, message: Down, fds: Sequence[int] = ()) -> None:
        found = from_plain(type(message), json.loads(json.dumps(to_plain(message))))
        self._queue.put(lambda: self._take(found))

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        return self._mirrors[worker]

    def tell(self, message: Up) -> None:
        """Tell the launch part something, after what the workers have written so far."""
        self.copy()
        found = from_plain(type(message), json.loads(json.dumps(to_plain(message))))
        self._queue.put(lambda: self.launch.hear(self, found))
        self.launch.push()  # as a loop does after each turn

    def copy(self) -> None:
        """Let each side see what the other one has written."""
        for worker, (up, down) in self._changes.items():
            self._mirrors[worker].take(json.loads(json.dumps(up.look())), Writer.WORKER)
            self.statuses[worker].take(json.loads(json.dumps(down.look())), Writer.AGENT)

    def _take(self, message: Down) -> None:
        self.heard.append(message)
        match message:
            case MakeWorkers(_, workers):
                for worker in workers:
                    self._make(worker)
            case KillWorker(generation, worker, why):
                self.tell(Killed(generation, worker, why))
            case Inquire(case, generation, workers):
                for worker in workers:
                    self.tell(Found(case, generation, worker, "", "", False, None))

    def _make(self, worker: WorkerId) -> None:
        real, mirror = WorkerStatus.mirror(), WorkerStatus.mirror()
        self.statuses[worker], self._mirrors[worker] = real, mirror
        changes = StatusChanges(real, Writer.WORKER), StatusChanges(mirror, Writer.AGENT)
        self._changes[worker] = changes

    def of(self, kind: type) -> list[Any]:
        """Return the messages of a kind that it has had."""
        return [message for message in self.heard if isinstance(message, kind)]

    def exits(self, worker: int, *, clean: bool = False, generation: int = 1) -> None:
        """Let a worker end."""
        del self._changes[WorkerId(worker)]
        self.tell(WorkerExited(WorkerId(worker), "exit 0", is_clean=clean, generation=generation))


class World:
    """Workers 0 and 1 on the first host, 2 and 3 on the second, and the launch of all."""

    def __init__(self) -> None:
        self.events: list[News] = []
        self.reactor = Reactor()
        queue = Queue()
        self.near, self.far = self.hosts = (FarHost(queue), FarHost(queue))
        self.launch = HostedLaunch(
            self.reactor, self.events.append, self.hosts, heartbeat_timeout_s=2.0
        )
        self.near.launch = self.far.launch = self.launch
        self.far.name = "b"
        self.launch.begin(LAUNCH)
        self.guards: list[Channel] = []
        for worker in LAUNCH.workers:
            self.host_of(worker).tell(Forked(1, worker, 100 + worker))
            ours, theirs = pair()
            self.guards.append(theirs)
            self.launch.take_guard(GuardLink(ours, None), GuardHello(worker, 1, "/", {}))
        self.now = 50.0
        self.are_inquiring = [False, False]

    def host_of(self, worker: int) -> FarHost:
        return self.hosts[worker // 2]

    def status(self, worker: int) -> WorkerStatus:
        return self.host_of(worker).statuses[WorkerId(worker)]

    def meets(self, worker: int, *survivors: int) -> None:
        """Let a worker ask whether it may go on with these."""
        met = SurvivorsMet(WorkerId(worker), tuple(map(WorkerId, survivors)))
        self.host_of(worker).tell(met)

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(4 * seconds)):
            self.now += 0.25
            for host, is_inquiring in zip(self.hosts, self.are_inquiring, strict=True):
                host.tell(Seen(is_inquiring))
            self.launch.poll(self.now)

    def of_kind(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        for hosted in self.launch.workers:
            hosted.close()
        for guard in self.guards:
            guard.close()
        self.reactor.close()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def test_each_host_makes_its_workers_and_all_hosts_watch_from_the_first_guard_on(
    world: World,
) -> None:
    for host, workers in ((world.near, [0, 1]), (world.far, [2, 3])):
        assert host.of(MakeWorkers) == [MakeWorkers(1, tuple(map(WorkerId, workers)))]
        assert [message.worker for message in host.of(LetBegin)] == workers
        assert host.of(Watch) == [Watch()]
        assert host.of(BeginLaunch) == [BeginLaunch(LAUNCH)]


TICKET = SaveTicket(1, 1, 30, 4, 2)


def hold(world: World, ticket: SaveTicket = TICKET) -> None:
    """Let the workers of both hosts copy their parts of a save."""
    world.near.tell(PartHeld(ticket, 0, frozenset(("aa",)), 1.0, "{}"))
    world.far.tell(PartHeld(ticket, 1, frozenset(("aa",)), 1.0))


def test_last_end_is_told_when_both_hosts_have_written_what_they_hold(world: World) -> None:
    hold(world)
    assert world.near.of(WriteShare) == [WriteShare(TICKET, 0, "")]
    assert world.far.of(WriteShare) == [WriteShare(TICKET, 1, "b")]
    for worker in LAUNCH.workers:
        world.host_of(worker).exits(worker)

    world.far.tell(ShareWritten(TICKET, 1, ("of b",)))
    assert world.near.of(CommitSave) == []
    world.near.tell(ShareWritten(TICKET, 0, ("mine",)))
    (commit,) = world.near.of(CommitSave)
    assert commit.records == (("mine",), ("of b",))
    assert [end.worker for end in world.of_kind(WorkerExited)] == [0, 1, 2]
    assert not world.launch.is_idle
    world.near.tell(SaveCommitted(TICKET))

    saved, end = world.events[-2:]
    assert saved == CheckpointCommitted(WorkerId(3), 30)
    assert isinstance(end, WorkerExited)
    assert (end.worker, end.launch_rank) == (3, 3)
    assert world.far.of(CommitSave) == []
    assert world.launch.is_idle
    assert not world.launch.state.ended_well


def test_memory_is_settled_when_the_last_worker_to_end_is_of_the_launch_before(
    world: World,
) -> None:
    """Its process hung in the kernel."""
    again = replace(LAUNCH, generation=5, workers=(WorkerId(4), WorkerId(5)), hosts=("", "b"))
    world.launch.begin(again)
    ticket = SaveTicket(5, 5, 40, 1, 2)
    hold(world, ticket)
    for worker in (1, 2, 3):
        world.host_of(worker).exits(worker)
    world.near.exits(4, generation=5)
    world.far.exits(5, generation=5)
    assert world.near.of(CommitSave) == []
    world.near.exits(0)

    world.near.tell(ShareWritten(ticket, 0, ("mine",)))
    world.far.tell(ShareWritten(ticket, 1, ("of b",)))
    world.near.tell(SaveCommitted(ticket))

    assert world.events[-2] == CheckpointCommitted(WorkerId(0), 40)
    assert world.launch.is_idle


def test_save_whose_host_is_lost_is_written_by_the_other_one_when_no_worker_lives(
    world: World,
) -> None:
    hold(world)
    world.near.tell(ShareWritten(TICKET, 0, ("mine",)))

    world.launch.lose_host(world.far, "its shell has ended")
    assert world.near.of(RemoveSave) == [RemoveSave(TICKET)]
    world.near.tell(SaveRemoved(TICKET))
    for worker in (0, 1):
        world.near.exits(worker)

    assert world.near.of(WriteShare)[1:] == [WriteShare(TICKET, share, "") for share in (0, 1)]
    assert world.of_kind(Notice) == [], "the user hears of the host"


def test_workers_leave_when_the_scripts_of_both_hosts_have_come_to_their_end(
    world: World,
) -> None:
    for worker in (0, 1, 2):
        world.host_of(worker).tell(ScriptEnded(WorkerId(worker)))
    assert world.near.of(LetLeave) == []

    world.far.tell(ScriptEnded(WorkerId(3)))

    assert world.near.of(LetLeave) == world.far.of(LetLeave) == [LetLeave(1)]


def test_workers_do_not_wait_for_a_killed_one_to_come_to_its_end(world: World) -> None:
    world.far.tell(Killed(1, WorkerId(3), "guard lost"))
    for worker in (0, 1, 2):
        world.host_of(worker).tell(ScriptEnded(WorkerId(worker)))

    assert world.near.of(LetLeave) == [LetLeave(1)]


def train_apart(world: World, trainings: int) -> None:
    """Let worker 1 end its script after some trainings, and worker 3 begin one more."""
    for worker in LAUNCH.workers:
        world.host_of(worker).tell(TrainingBegun(worker, trainings))
    world.near.tell(ScriptEnded(WorkerId(1)))
    world.far.tell(TrainingBegun(WorkerId(3), trainings + 1))


def test_launch_whose_scripts_have_gone_apart_ends_with_an_error_of_each_worker(
    world: World,
) -> None:
    world.near.exits(0, clean=True)  # it has its error all the same

    train_apart(world, 1)

    errors = world.of_kind(WorkerFailed)
    assert [error.worker for error in errors] == [0, 1, 2, 3]
    for error in errors:
        assert (error.error_type, error.exit_code) == ("ScriptsApart", 1)
        assert error.message.startswith("worker 1 ended its script after 1 training, but")
    assert all(hosted.is_condemned for hosted in world.launch.workers)


@pytest.mark.parametrize(("trainings", "kind"), [(1, WorkerStopped), (0, WorkerFailed)])
def test_scripts_that_go_apart_after_an_order_to_stop_have_stopped_at_their_last_training(
    world: World, trainings: int, kind: type[WorkerStopped | WorkerFailed]
) -> None:
    world.status(1).commit(40)
    world.launch.stop_all()

    train_apart(world, trainings)

    told = world.of_kind(WorkerStopped) + world.of_kind(WorkerFailed)
    assert {type(one) for one in told} == {kind}
    assert getattr(told[0], "step", None) == (40 if trainings else None)
    assert all(hosted.is_condemned for hosted in world.launch.workers)


def test_survivors_of_a_death_get_the_word_and_a_cut_off_side_ends(world: World) -> None:
    world.far.exits(3)
    world.meets(0, 0, 1)  # most of those that live
    world.meets(2, 2)

    assert world.near.of(NameWorld) == [NameWorld(1, WorkerId(0), 2)]
    assert world.of_kind(WorldNamed) == [WorldNamed((WorkerId(0), WorkerId(1)))]
    assert world.far.of(NameWorld) == []
    assert [(kill.worker, kill.why) for kill in world.far.of(KillWorker)] == [
        (2, "it is cut off from the workers that go on")
    ]


def test_the_smaller_side_gets_the_word_when_the_others_are_lost(world: World) -> None:
    world.meets(2, 2, 3)
    assert world.far.of(NameWorld) == []

    world.near.exits(0)

    assert world.far.of(NameWorld) == [NameWorld(1, WorkerId(2), 2)]


@pytest.mark.parametrize("has_first", [True, False])
def test_a_host_that_is_lost_with_the_first_worker_of_the_world_may_go_on_for_a_while(
    world: World, *, has_first: bool
) -> None:
    world.far.leased_s = world.near.leased_s = 7.0
    if has_first:
        for worker in (0, 1):
            world.near.exits(worker)
        world.meets(2, 2, 3)

    world.launch.lose_host(world.far, "its shell has ended")

    (lost,) = world.of_kind(HostLost)
    assert (lost.workers, lost.leased_s) == ((2, 3), 7.0 if has_first else 0.0)


def test_workers_that_wait_for_a_worker_of_another_host_are_well(world: World) -> None:
    for worker in LAUNCH.workers:
        world.status(worker).phase = Phase.TRAINING
        world.status(worker).begin_turn(waits_for_peers=worker != 3)

    world.pass_time(60.0)
    assert world.of_kind(Stalled) == []
    world.status(3).begin_turn(waits_for_peers=True)
    world.pass_time(11.0)

    (stalled,) = world.of_kind(Stalled)
    assert stalled.workers == (0, 1, 2, 3)
    for host, workers in ((world.near, [0, 1]), (world.far, [2, 3])):
        assert [(kill.worker, kill.limit) for kill in host.of(KillWorker)] == [
            (worker, "standstill") for worker in workers
        ]


def test_silence_on_one_host_explains_why_those_of_the_other_wait(world: World) -> None:
    for worker in LAUNCH.workers:
        world.status(worker).begin_turn(waits_for_peers=True)
    world.pass_time(9.0)

    world.are_inquiring[1] = True
    world.pass_time(5.0)

    assert world.launch.is_inquiring
    assert world.of_kind(Stalled) == []


def test_outcome_of_a_save_and_an_order_to_stop_reach_the_workers_of_both_hosts(
    world: World,
) -> None:
    fails, overtaken = replace(TICKET, attempt=5), replace(TICKET, attempt=6)
    hold(world)
    for share, host in enumerate(world.hosts):
        host.tell(ShareWritten(TICKET, share, ()))
    world.near.tell(SaveCommitted(TICKET))
    hold(world, replace(TICKET, attempt=7, launch=9))  # it counts its saves anew
    hold(world, fails)
    world.near.tell(WorkFailed(fails, 0, "the disk is broken"))
    world.far.tell(ShareWritten(fails, 1, ()))
    world.near.tell(SaveRemoved(fails))
    world.near.tell(PartHeld(overtaken, 0, frozenset(("aa",)), 1.0, "{}"))
    hold(world, replace(TICKET, attempt=8))
    world.near.tell(ShareWritten(overtaken, 0, ()))
    world.near.tell(SaveRemoved(overtaken))
    world.launch.stop_all()
    world.far.copy()
    world.near.copy()

    pages = [world.status(worker) for worker in range(4)]
    assert [(page.durable_save, page.failed_save) for page in pages] == [(4, 6)] * 4
    assert not any(page.is_answered(7) for page in pages)
    assert [notice.text for notice in world.of_kind(Notice)] == [
        "the checkpoint of step 30 failed: the disk is broken"
    ]
    assert [records.source for records in world.of_kind(Records)] == ["snapshot writer"]
    asked = [world.status(worker).requests for worker in range(4)]
    assert asked == [RequestFlag.STOP] * 4


def test_worker_whose_guard_is_lost_is_killed_on_its_host_and_no_other_one(world: World) -> None:
    world.guards[2].close()
    world.reactor.run_once(10.0)

    assert world.far.of(KillWorker) == [KillWorker(1, WorkerId(2), "guard lost")]
    assert world.near.of(KillWorker) == []
    assert [hosted.worker for hosted in world.launch.workers if hosted.is_condemned] == [2]


def test_descriptor_of_a_prepared_worker_that_died_may_be_that_of_another_visitor(
    world: World,
) -> None:
    launch = worker_config(4, (4, 5), generation=5, hosts=("b", "b"))
    world.launch.prepare(launch)
    ours, theirs = pair()
    world.guards.append(theirs)
    world.launch.take_guard(GuardLink(ours, None), GuardHello(0, 5, "/", {}))
    number = ours.fileno()
    world.far.exits(4, generation=5)

    os.dup2(theirs.fileno(), number)
    world.reactor.watch(number, lambda: None)
    world.reactor.forget(number)
    os.close(number)
    (failed,) = world.of_kind(PreparationFailed)
    assert failed.generation == 5
    assert world.far.of(KillWorker) == [KillWorker(5, WorkerId(5), failed.reason)]


def test_all_hosts_hear_of_the_first_worker_of_the_newest_world(world: World) -> None:
    world.far.tell(WorldFormed(1, LAUNCH.workers, 0))
    for worker in (0, 1):
        world.near.exits(worker)
    world.far.tell(WorldFormed(3, LAUNCH.workers[2:], 9))
    world.far.tell(WorldFormed(1, LAUNCH.workers, 0))  # it is late

    leads = [Lead(WorkerId(first)) for first in (0, 2)]
    assert world.near.of(Lead) == world.far.of(Lead) == leads


def test_status_has_the_workers_of_both_hosts_and_how_old_it_is(world: World) -> None:
    world.status(3).commit(7)
    world.far.unheard_s = 4.0
    world.near.tell(Described(1, WorkerId(0), 1 << 20, None))
    world.far.tell(Described(1, WorkerId(3), 1 << 21, 0.5))

    workers = {each.worker: each for each in world.launch.describe().workers}

    assert (workers[0].resident_bytes, workers[0].silent_s) == (1 << 20, None)
    assert (workers[3].resident_bytes, workers[3].silent_s) == (1 << 21, 4.5)
    assert (workers[3].step, workers[3].pid) == (7, 103)


def test_word_about_a_worker_that_is_gone_is_dropped(world: World) -> None:
    world.far.exits(3)
    before = len(world.events)

    world.far.tell(WorkerJoined(WorkerId(3)))
    world.far.tell(Killed(1, WorkerId(3), "late"))

    assert len(world.events) == before


def test_events_and_sentences_of_a_host_are_passed_on(world: World) -> None:
    told = [PoolRestarted("signal SIGKILL"), Notice("checkpoints are at risk")]
    for event in told:
        world.far.tell(event)

    assert world.events[-2:] == told


def test_error_of_a_worker_is_the_cause_of_its_end(world: World) -> None:
    code = ExitCode.PROGRAM_FAILED
    world.far.tell(WorkerFailed(WorkerId(2), "ValueError", "odd", "T", code, where="f (a.py:1)"))
    world.far.exits(2)

    end = world.events[-1]
    assert isinstance(end, WorkerExited)
    assert (end.cause, end.where, end.traceback) == ("ValueError: odd", "f (a.py:1)", "T")


def test_call_from_within_a_call_waits_for_its_end_and_is_made_even_if_that_fails() -> None:
    queue, made = Queue(), list[int]()

    def fail() -> None:
        queue.put(lambda: made.append(1))
        assert made == []
        raise OSError("no descriptor is left")

    with pytest.raises(OSError, match="no descriptor"):
        queue.put(fail)
    queue.put(lambda: made.append(2))

    assert made == [1, 2]


def test_no_message_but_the_plan_of_saves_goes_both_ways() -> None:
    down, up = host_messages.Down.__args__, host_messages.Up.__args__

    assert set(down) & set(up) == {PlanSaves}


def test_host_that_is_lost_while_the_ways_to_it_are_tried_takes_no_worker(world: World) -> None:
    """Those that were to try them are asked for others next."""
    pairs = world.launch.pairs = PairTrials("10.1.0.0/16", "a")
    newcomer, told, found = FarHost(Queue()), [], []
    newcomer.name = "c"
    world.launch.start_host(lambda *_: newcomer, is_tried=True)
    world.launch.admit("c", told.append)
    pairs.begin(world.hosts, found.append)
    newcomer.is_lost = True
    world.launch.lose_host(newcomer, "its link is cut")
    for number in (1, 2):
        for host in world.hosts:
            host.tell(Met(number))

    assert told == []
    assert world.of_kind(HostLost)[0].host == "c"
    assert found == [{frozenset("ab"): "no interface is up there"}]
