"""The head between its agent, its clients, its writers, and whoever asks something of the job."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from heads import ENDED, WARM, completed, exited, formed, job_of, joined, kind_of, saved, stopped

from holdfast.recovery.event import Event
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head import head as module
from holdfast.runtime.head import run_link
from holdfast.runtime.head.console import JobConsole
from holdfast.runtime.head.head import Head
from holdfast.runtime.head.job import Job
from holdfast.runtime.head.job_hosts import JobHosts
from holdfast.runtime.head.orders import TimeLimit, TimeLimits
from holdfast.runtime.head.visits import (
    AnotherJob,
    AskSave,
    AskScale,
    AskStatus,
    AskStop,
    BeginJob,
    ClientPing,
    ClientRefused,
    HeadPong,
    JobStarting,
    JobStopping,
    PassSignals,
    SaveAsked,
    ShowJob,
    Standing,
    StopOrdered,
)
from holdfast.runtime.host.agent import Agent, AgentSettings, Visitor
from holdfast.runtime.host.host_messages import LaunchOrder, News, Order
from holdfast.runtime.host.pool_process import PoolStart
from holdfast.runtime.run.checkpoint_events import Checkpoint, Rejected
from holdfast.runtime.run.events import Notice, OutputDropped, Warned
from holdfast.runtime.run.journal import Record, RecordedEvent, Records
from holdfast.runtime.run.progress import LaunchReport, StepReport
from holdfast.runtime.saving.run_files import JobOver
from holdfast.runtime.system.channel import FDS, Channel, Message, MessageKinds, pair, to_message
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.system.reactor import Reactor

TERM = signal.SIGTERM
LOST = [exited(0), exited(1), ENDED]


class Sinks:
    """The streams of a client, which keep everything."""

    def __init__(self) -> None:
        self.said, self.live, self.redirected = b"", list[bytes](), 0

    def __getitem__(self, number: int) -> Sinks:
        return self

    def put(self, lines: bytes) -> None:
        self.said += lines

    def draw(self, live_line: bytes) -> None:
        self.live.append(live_line)

    def redirect(self) -> None:
        self.redirected += 1


class FakeAgent:
    """As much of an agent as its head sees; it hosts nothing."""

    def __init__(
        self,
        settings: AgentSettings,
        introduce: Callable[[Visitor, Message], None],
        on_files: Callable[[Channel], None],
    ) -> None:
        self.settings, self.introduce, self.on_files = settings, introduce, on_files
        self.events: deque[News] = deque()
        self.reactor = Reactor()
        self.streams = Sinks()
        self.socket = settings.directory / "agent.sock"
        self.orders: list[Order] = []
        self.writers_started = 0
        writer = SimpleNamespace(start=self._start_writer)
        progress = LaunchReport(living=2, phase="training")
        self.launch = SimpleNamespace(progress=progress, describe=lambda: progress)
        self.host = SimpleNamespace(writer=writer)

    def _start_writer(self) -> None:
        self.writers_started += 1

    def tell(self, event: News) -> None:
        self.events.append(event)

    def close(self) -> None:
        pass

    def obey(self, order: Order) -> None:
        self.orders.append(order)


class Headed:
    """A head with its agent, and the far ends of all connections."""

    def __init__(self, directory: Path) -> None:
        self.lease = os.open(os.devnull, os.O_RDONLY)
        pool = cast(PoolStart, None)
        settings = AgentSettings(directory, 6.0, pool, os.getppid(), os.dup(self.lease))
        self.head = Head(settings, cast("type[Agent]", self._make))
        self.now = 100.0
        self.exit_code: ExitCode | None = None
        self.is_idle = False
        self._ends: list[Channel] = []

    def _make(self, *terms: Any) -> FakeAgent:
        self.agent = FakeAgent(*terms)
        return self.agent

    def connect(self, message: Message, fds: tuple[int, ...] = ()) -> Channel:
        """Connect to the head as its agent would let one, and introduce oneself."""
        theirs, ours = pair()
        self._ends += [theirs, ours]
        visitor = Visitor(ours, lambda found: self.agent.introduce(visitor, found), ours.close)
        self.agent.reactor.watch_channel(ours, visitor.take, visitor.end)
        theirs.post(message, fds)
        self.turn()
        return theirs

    def begin(self, *events: News, job: Job | None = None, **more: Any) -> Channel:
        """Begin the job as a client, let it hear events, and return the client's end."""
        client = self.connect(to_message(BeginJob(to_plain(job or job_of()), **more)))
        self.tell(*events)
        return client

    def attach(self, asked: list[Any] | None = None) -> Channel:
        return self.connect(to_message(ShowJob(asked and tuple(asked))))

    def tell(self, *events: News) -> None:
        """Let things happen on the host."""
        for event in events:
            self.agent.tell(event)
        self.turn()

    def turn(self, seconds: int = 1) -> None:
        """Let time pass by: handle what has come, once a second."""
        for _ in range(seconds):
            self.now += 1.0
            self.agent.reactor.run_once(0.0)
            self.exit_code = self.head.poll(self.now, is_idle=self.is_idle)

    def writer(self) -> Channel:
        """Give the head a writer; return the writer's end."""
        ours, theirs = pair()
        self._ends += [theirs, ours]
        self.agent.on_files(ours)
        return theirs

    @property
    def kinds(self) -> list[str]:
        return list(map(kind_of, self.agent.orders))

    @property
    def said(self) -> list[str]:
        return self.agent.streams.said.decode().splitlines()

    def close(self) -> None:
        self.head.close()
        for end in self._ends:
            end.close()
        self.agent.reactor.close()
        os.close(self.lease)


@pytest.fixture
def headed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Headed]:
    monkeypatch.setattr(run_link, "_ENDS_WITHIN_S", 0.0)
    made = Headed(tmp_path)
    yield made
    made.close()


def told(channel: Channel) -> list[Message]:
    """Return what came, with descriptors closed."""
    messages = channel.drain()
    for message in messages:
        for fd in message.pop(FDS, ()):
            os.close(fd)
    return messages


def kinds(messages: list[Message]) -> list[str]:
    return [message["kind"] for message in messages]


def lines_of(writer: Channel) -> list[Record]:
    """Return the records that a writer was sent."""
    messages = [message for message in told(writer) if message["kind"] == "JournalLines"]
    return [json.loads(line) for message in messages for line in message["lines"]]


def test_client_begins_a_job_and_gets_all_that_another_head_would_need(
    headed: Headed, tmp_path: Path
) -> None:
    job = job_of(spares=1)
    client = headed.begin(job=job)

    (order,) = headed.agent.orders
    assert isinstance(order, LaunchOrder)
    assert order.config.workers == (0, 1, 2)
    greeting, standing = client.drain()
    assert MessageKinds(Standing).decode(standing) == Standing(to_plain(order))
    (lease,) = greeting.pop(FDS)
    assert os.path.samestat(os.fstat(lease), os.fstat(headed.lease))
    os.close(lease)
    assert from_plain(Job, greeting.pop("job")) == job
    assert greeting == {
        "kind": "ClientTaken",
        "workers": 3,
        "directory": str(tmp_path),
        "cwd": os.getcwd(),
        "environment": dict(os.environ),
    }


def test_client_knows_of_a_launch_before_the_agent_prepares_it(
    headed: Headed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head may die in between: then another one uses none of its numbers."""
    clients: list[Channel] = []
    known: list[Message] = []

    def obey(order: Order) -> None:
        if kind_of(order) == "prepare":
            known.extend(told(clients[0]))

    monkeypatch.setattr(headed.agent, "obey", obey)
    training = StepReport(100.0, 40, 80, epoch=1, epochs=1, step_of_epoch=40, steps_per_epoch=80)
    headed.agent.launch.progress = LaunchReport(progress=training)
    clients.append(headed.begin(WARM, *joined(0), formed(0), job=job_of(workers=1)))
    told(clients[0])

    headed.connect(to_message(AskScale(2)))

    standing = MessageKinds(Standing).decode(known[-1])
    assert (standing.asked, standing.prepared) == (2, 2)


def test_streams_of_a_client_are_written_to_from_then_on(headed: Headed, tmp_path: Path) -> None:
    kept = [os.dup(number) for number in (1, 2)]
    out, err = tmp_path / "out", tmp_path / "err"
    with out.open("wb") as ours, err.open("wb") as errors:
        message = to_message(BeginJob(to_plain(job_of())))
        headed.connect(message, (ours.fileno(), errors.fileno()))
    try:
        os.write(1, b"to stdout")
        os.write(2, b"to stderr")
    finally:
        for number, fd in enumerate(kept, start=1):
            os.dup2(fd, number)
            os.close(fd)

    assert (out.read_text(), err.read_text()) == ("to stdout", "to stderr")
    assert headed.agent.streams.redirected == 1


@pytest.mark.parametrize(
    "message",
    [to_message(ShowJob(None)), to_message(AskSave(True)), to_message(AskStop(False))],
    ids=["attach", "save", "stop"],
)
def test_head_without_a_job_is_just_starting(headed: Headed, message: Message) -> None:
    visitor = headed.connect(message)

    assert told(visitor) == [to_message(JobStarting())]
    assert visitor.is_closed


@pytest.mark.parametrize(
    ("parent_lives", "is_late", "code"),
    [(True, False, None), (False, False, ExitCode.DONE), (True, True, ExitCode.DONE)],
    ids=["waits", "its client is gone", "its client tells it nothing"],
)
def test_head_waits_for_its_first_client_but_not_for_ever(
    headed: Headed,
    monkeypatch: pytest.MonkeyPatch,
    code: ExitCode | None,
    *,
    parent_lives: bool,
    is_late: bool,
) -> None:
    killed: list[int] = []
    parent = os.getppid() if parent_lives else 1 << 30
    monkeypatch.setattr(module, "kill_standing_parent", killed.append)
    monkeypatch.setattr(module.os, "getppid", lambda: parent)
    now = module.witnessed_s() + (61.0 if is_late else 0.0)

    assert headed.head.poll(now, is_idle=True) is code
    assert killed == ([] if code is None else [headed.agent.settings.parent])


def test_second_client_and_job_are_refused_while_the_first_is_well(headed: Headed) -> None:
    first = headed.begin(WARM)
    told(first)
    read, write = os.pipe()

    second = headed.connect(to_message(ShowJob(None)), (write, write))
    other = headed.begin()
    os.close(write)

    assert told(second) == [to_message(ClientRefused(os.getpid()))]
    assert kinds(told(other)) == ["AnotherJob"]
    assert second.is_closed
    assert other.is_closed
    assert os.read(read, 1) == b""  # its streams are let go
    os.close(read)
    assert headed.kinds == ["launch"]
    first.post(to_message(ClientPing(80)))
    headed.turn()
    assert told(first) == [to_message(HeadPong())]


def test_client_whose_terminal_is_gone_is_replaced(
    headed: Headed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives its terminal, and nobody could see what it shows."""
    monkeypatch.setattr(module, "kill_peer", lambda channel, unless: None)
    first = headed.begin(WARM)
    first.post(to_message(PassSignals((signal.SIGHUP,))))
    headed.turn()

    second = headed.attach()

    assert told(second)[0]["kind"] == "ClientTaken"


def test_client_that_stands_still_is_killed_and_replaced(
    headed: Headed, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[int] = []
    monkeypatch.setattr(
        module, "kill_peer", lambda channel, unless: killed.append(channel.peer_pid)
    )
    first = headed.begin(WARM, *joined(0, 1))
    told(first)

    headed.turn(8)
    second = headed.attach()

    assert kinds(told(second)) == ["ClientTaken", "Standing"]
    assert killed == [os.getpid()]
    told(first)
    assert first.is_closed
    headed.tell(saved(0, 5))
    assert kinds(told(second)) == ["Standing"]
    assert headed.kinds == ["launch"]


def test_job_whose_client_is_gone_goes_on_and_takes_another(headed: Headed) -> None:
    writer = headed.writer()
    headed.begin(WARM, *joined(0, 1)).close()
    headed.tell(*LOST)
    assert headed.kinds == ["launch", "launch"]

    _, standing = told(headed.attach())

    assert standing["order"]["config"]["workers"] == [2, 3]
    assert not standing["is_up"]
    records = lines_of(writer)
    assert records[-1]["event"] == "taken_over"
    assert (records[-1]["agent"], records[-1]["workers"]) == (os.getpid(), [2, 3])


@pytest.mark.parametrize(
    ("asked", "is_taken"),
    [
        (None, True),
        ([False, "/a/train.py", "--lr", "1"], True),
        ([False, "/a/train.py"], False),
        ([True, "/a/train.py", "--lr", "1"], False),
    ],
    ids=["attach", "the same job", "other arguments", "fresh"],
)
def test_only_a_request_for_the_same_job_is_shown_it(
    headed: Headed, asked: list[Any] | None, *, is_taken: bool
) -> None:
    headed.begin(job=job_of(argv=("--lr", "1"))).close()
    headed.turn()

    answer = told(headed.attach(asked))[0]

    if is_taken:
        assert answer["kind"] == "ClientTaken"
    else:
        its = [False, "/a/train.py", "--lr", "1"]
        assert answer == to_message(AnotherJob(tuple(its)))


def test_client_is_sent_how_the_launch_stands_and_each_new_one(headed: Headed) -> None:
    client = headed.begin()
    told(client)

    headed.tell(WARM, *joined(0), Notice("hi"))
    assert told(client) == []
    headed.tell(*joined(1), saved(0, 5))
    assert [(one["is_up"], one["saved_step"]) for one in told(client)] == [(True, None), (True, 5)]
    headed.tell(*LOST)

    (standing,) = told(client)
    assert standing["order"]["config"]["workers"] == [2, 3]
    assert (standing["is_up"], standing["saved_step"]) == (False, None)


def test_next_head_goes_on_from_what_the_client_was_told(headed: Headed, tmp_path: Path) -> None:
    headed.begin(WARM, *joined(0, 1), saved(0, 5), exited(0)).close()
    headed.turn()
    greeting, standing = told(headed.attach())
    after = MessageKinds(Standing).decode(standing)

    successor = Headed(tmp_path)
    client = successor.begin(job=from_plain(Job, greeting["job"]), after=after)

    successor.turn()
    (again,) = successor.agent.orders
    assert isinstance(again, LaunchOrder)
    assert (again.config.workers, again.relaunch) == ((2, 3), 1)
    assert from_plain(LaunchOrder, told(client)[-1]["order"]) == again
    assert successor.said == [
        "holdfast: the agent of this host died, and its workers with it",
        "holdfast: relaunching 2 workers (worker 0: its agent died, worker 1: its agent died)",
    ]
    successor.close()


def test_live_line_is_drawn_while_the_client_lives_and_says_how_wide(headed: Headed) -> None:
    client = headed.begin()
    headed.turn()
    assert headed.agent.streams.live == []

    client.post(to_message(ClientPing(80)))
    headed.turn(2)
    assert len(headed.agent.streams.live) > 0
    assert headed.agent.streams.live[-1] != b""
    headed.turn(8)  # it stands still
    assert headed.agent.streams.live[-1] == b""
    client.post(to_message(ClientPing(80)))
    headed.turn(2)
    assert headed.agent.streams.live[-1] != b""
    client.close()
    headed.turn()

    assert headed.agent.streams.live[-1] == b""


def records(event: Event, source: str = "worker 0") -> Records:
    return Records((RecordedEvent.of(event),), source)


WORLD = records(formed(0, 1))


def checkpoint(step: int) -> Records:
    return records(Checkpoint(step, 0.0, 1, 1))


def test_save_is_answered_with_the_checkpoint_that_was_begun_after_it(headed: Headed) -> None:
    headed.begin(WARM, *joined(0, 1), WORLD)

    saver = headed.connect(to_message(AskSave(is_waiting=True)))
    assert told(saver) == [to_message(SaveAsked())]
    headed.tell(checkpoint(7))

    (saved,) = told(saver)
    assert (saved["kind"], saved["step"]) == ("SaveDone", 7)
    assert headed.kinds == ["launch", "save"]


def test_save_of_somebody_who_has_gone_is_forgotten(headed: Headed) -> None:
    headed.begin(WARM, *joined(0, 1))
    headed.connect(to_message(AskSave(is_waiting=True))).close()
    headed.turn()

    headed.tell(WORLD, checkpoint(7))

    assert headed.kinds == ["launch"]


@pytest.mark.parametrize("is_urgent", [False, True])
def test_stop_is_answered_at_once_and_with_the_exit_code_at_the_end(
    headed: Headed, *, is_urgent: bool
) -> None:
    client = headed.begin(WARM, *joined(0, 1))

    stopper = headed.connect(to_message(AskStop(is_urgent)))
    assert to_message(StopOrdered()) in told(client)
    assert told(stopper) == [to_message(JobStopping())]
    assert headed.kinds == ["launch", "stop", *["kill"] * is_urgent]
    headed.tell(*stopped(0, 1), exited(0, is_clean=True), exited(1, is_clean=True), ENDED)
    headed.head.close()

    assert headed.exit_code is not None
    (ended,) = told(stopper)
    assert (ended["kind"], ended["exit_code"]) == ("JobDone", headed.exit_code)


def test_stopper_who_leaves_or_asks_again_fails_nothing(headed: Headed) -> None:
    headed.begin(WARM, *joined(0, 1))
    headed.connect(to_message(AskStop(is_urgent=False))).close()
    again = headed.connect(to_message(AskStop(is_urgent=False)))

    again.post(to_message(AskStop(is_urgent=False)))
    headed.turn(2)
    headed.tell(*LOST)
    headed.head.close()

    assert headed.kinds == ["launch", "stop"]
    assert kinds(told(again)) == ["JobStopping", "JobStopping", "JobDone"]


@pytest.mark.parametrize(
    "message",
    [
        {"kind": "dance"},
        {"kind": "BeginJob", "job": 3},
        {"kind": "BeginJob", "job": {}},
        {"kind": "BeginJob", "job": {"config": {"options": []}}},
    ],
    ids=str,
)
def test_message_of_no_holdfast_costs_nobody_the_job(headed: Headed, message: Message) -> None:
    headed.head.take_signals([TERM])  # there is no job that could end
    stranger = headed.connect(message)

    assert told(stranger) == []
    assert stranger.is_closed
    assert kinds(told(headed.begin())) == ["ClientTaken", "Standing"]


def test_job_is_described_with_its_launch_and_its_client(headed: Headed) -> None:
    asker = headed.connect(to_message(AskStatus()))
    (answer,) = told(asker)
    assert (answer["kind"], answer["seen"]["living"]) == ("HeadStatus", 2)
    nothing = {"pid": os.getpid(), "client": None, "run_dir": None, "launched": 0}
    assert answer.items() >= nothing.items()

    client = headed.begin()
    described = {"pid": os.getpid(), "run_dir": "/run", "launched": 2}
    for pid in (os.getpid(), None):  # one connection is enough to ask again and again
        asker.post(to_message(AskStatus()))
        headed.turn()
        (answer,) = told(asker)
        assert answer | described | {"client": pid} == answer
        client.close()
        headed.turn()


def test_event_is_handled_only_when_its_teller_has_returned(headed: Headed) -> None:
    """A decision must meet no host in the middle of a change."""
    headed.begin(WARM, *joined(0, 1))

    for event in LOST:
        headed.agent.tell(event)
    assert headed.kinds == ["launch"]
    headed.turn()

    assert headed.kinds == ["launch", "launch"]


def test_writer_is_started_until_there_is_one(headed: Headed) -> None:
    headed.begin()
    headed.turn(2)
    started = headed.agent.writers_started
    assert started > 0

    headed.writer()
    headed.turn(2)

    assert headed.agent.writers_started == started


@pytest.mark.parametrize("is_first", [True, False], ids=["before the job", "after it has begun"])
def test_records_of_all_processes_reach_the_writer_in_order(
    headed: Headed, *, is_first: bool
) -> None:
    writer = headed.writer() if is_first else None
    headed.begin(WARM, *joined(0, 1), WORLD, *LOST)
    writer = writer or headed.writer()

    written = lines_of(writer)

    events = [record["event"] for record in written]
    assert events == ["launch", "world", "failure", "failure", "relaunch", "launch"]
    assert written[1]["source"] == "worker 0"
    assert {record["source"] for record in written[:1] + written[2:]} == {"head"}


def test_workers_of_the_next_launch_know_the_records_of_the_last(headed: Headed) -> None:
    headed.begin(WARM, *joined(0, 1), records(Rejected(7, "it is torn")), *LOST)

    order = headed.agent.orders[1]
    assert isinstance(order, LaunchOrder)
    assert order.config.history.rejected == (7,)


def test_warning_of_the_writer_is_told_and_recorded(headed: Headed) -> None:
    writer = headed.writer()
    headed.begin()

    writer.post(to_message(Warned("the disk is full")))
    headed.turn()

    assert headed.said == ["holdfast: the disk is full"]
    assert lines_of(writer)[-1]["text"] == "the disk is full"


def test_client_hears_the_end_with_the_limits_that_were_hit(headed: Headed) -> None:
    client = headed.begin(WARM, *joined(0, 1))
    told(client)

    headed.tell(*completed(0, 1))
    assert headed.exit_code == ExitCode.DONE
    headed.head.close()

    ended = told(client)[-1]
    assert (ended["kind"], ended["exit_code"]) == ("JobDone", ExitCode.DONE)
    assert ended["limits"] == to_plain(job_of().limits)
    assert client.is_closed


def test_job_whose_time_ends_while_it_waits_for_a_host_ends(
    headed: Headed, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    limits = TimeLimits(TimeLimit(now - 3600.0, now + 1800.0, "squeue"), is_batch=True)
    headed.begin(WARM, *joined(0, 1), job=job_of(limits))
    hosts = SimpleNamespace(
        why_wait=lambda now: "waiting for b", missing=["b"], poll=lambda now: None
    )
    assert headed.head._job is not None
    headed.head._job.hosts = cast(JobHosts, hosts)
    headed.tell(*LOST)
    headed.turn(2)
    assert headed.exit_code is None
    assert headed.kinds == ["launch"]

    monkeypatch.setattr(TimeLimits, "now", now + 1790.0)
    headed.turn(2)

    assert headed.exit_code == ExitCode.STOPPED_EARLY
    assert any("waiting for b" in line for line in headed.said)


def test_client_of_a_head_that_ends_before_its_job_hears_no_end(headed: Headed) -> None:
    """It then starts another head."""
    client = headed.begin(WARM)
    told(client)

    headed.head.close()

    assert "JobDone" not in kinds(told(client))
    assert client.is_closed


@pytest.mark.parametrize("is_over", [True, False])
def test_what_is_left_at_the_end_is_written_down(headed: Headed, *, is_over: bool) -> None:
    writer = headed.writer()
    headed.begin(WARM, *joined(0, 1), *(completed(0, 1) if is_over else []))
    headed.agent.tell(OutputDropped(3))

    headed.head.close()

    assert headed.said[-1].startswith("holdfast: 3 lines of the job's output were lost")
    sent = told(writer)
    last = [
        line for message in sent if message["kind"] == "JournalLines" for line in message["lines"]
    ]
    assert json.loads(last[-1])["event"] == "output_dropped"
    assert (sent[-1] == to_message(JobOver())) is is_over


ODD = Notice("odd")


@pytest.fixture
def broken(headed: Headed, monkeypatch: pytest.MonkeyPatch) -> Headed:
    """A head that makes a mistake at an odd event."""
    show = JobConsole.show

    def fail(self: JobConsole, event: Event) -> None:
        if event == ODD:
            raise ZeroDivisionError("a mistake")
        show(self, event)

    monkeypatch.setattr(JobConsole, "show", fail)
    return headed


def test_mistake_in_a_decision_ends_no_worker_and_is_told_once(broken: Headed) -> None:
    writer = broken.writer()
    client = broken.begin(WARM, *joined(0, 1))

    broken.tell(ODD, ODD, exited(0))

    assert broken.exit_code is None
    assert broken.kinds == ["launch"]
    assert [line for line in broken.said if "a mistake" in line] == broken.said
    failed = [record for record in lines_of(writer) if record["event"] == "head_failed"]
    assert [record["reason"] for record in failed] == ["ZeroDivisionError: a mistake"]
    client.post(to_message(ClientPing(0)))
    broken.turn()
    assert kinds(told(client))[-1] == "HeadPong"


@pytest.mark.parametrize(
    ("rest", "code"),
    [(LOST, ExitCode.RECOVERY_IMPOSSIBLE), (completed(0, 1), ExitCode.DONE)],
    ids=["lost", "completed"],
)
def test_job_ends_with_the_launch_of_a_head_that_has_failed(
    broken: Headed, rest: list[Event], code: ExitCode
) -> None:
    broken.begin(WARM, *joined(0, 1), ODD)

    broken.turn(20)
    assert broken.exit_code is None
    broken.tell(*rest)

    assert broken.exit_code == code
    assert broken.kinds == ["launch"]


def test_head_that_has_failed_still_stops_the_job_and_saves(broken: Headed) -> None:
    broken.begin(WARM, *joined(0, 1), WORLD, ODD)

    saver = broken.connect(to_message(AskSave(is_waiting=True)))
    stopper = broken.connect(to_message(AskStop(is_urgent=False)))
    broken.tell(checkpoint(7))

    assert kinds(told(saver)) == ["SaveAsked", "SaveDone"]
    assert kinds(told(stopper)) == ["JobStopping"]
    assert broken.kinds == ["launch", "save", "stop"]
    broken.head.take_signals([TERM])
    assert broken.kinds == ["launch", "save", "stop", "kill"]


def test_mistake_in_the_first_decision_ends_the_job(
    headed: Headed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a mistake")

    monkeypatch.setattr(JobConsole, "launching", fail)
    headed.is_idle = True

    headed.begin()
    headed.turn(10)

    assert headed.exit_code == ExitCode.RECOVERY_IMPOSSIBLE
    assert headed.kinds == []
    assert any("error: the launch has ended, and the head that" in line for line in headed.said)


def test_head_of_a_job_that_has_ended_stays_for_a_client_that_is_stopped(
    headed: Headed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds the lease, so nobody else could have the directory; the next one takes its place."""
    stopped = [os.getpid()]
    monkeypatch.setattr(module, "is_stopped", lambda pid: pid in stopped)
    headed.begin(WARM, *joined(0, 1))

    headed.tell(*completed(0, 1))
    headed.turn(5)
    assert headed.exit_code is None

    stopped.clear()
    headed.turn()
    assert headed.exit_code == ExitCode.DONE
