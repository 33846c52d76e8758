"""The head's way to the run directory: what the writer is sent, counts and answers."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from heads import RECORD, job_of

from holdfast.recovery.event import RunDirectoryLost, WorldFormed
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.head import run_link
from holdfast.runtime.head.run_link import RunLink
from holdfast.runtime.run.entries import Entry
from holdfast.runtime.run.events import HungUp, JobEnded, LaunchBegan, Step, Warned
from holdfast.runtime.run.journal import Record, RecordedEvent, Records
from holdfast.runtime.run.worker_logs import LogText
from holdfast.runtime.saving.run_files import (
    CheckDirectory,
    JobOver,
    JournalLines,
    OfRunFiles,
    OpenRun,
    ToRunFiles,
    Written,
)
from holdfast.runtime.system.channel import FDS, Channel, MessageKinds, pair, to_message
from holdfast.runtime.system.reactor import Reactor

_MESSAGES: MessageKinds[ToRunFiles] = MessageKinds(ToRunFiles)


def records_of(message: JournalLines) -> list[Record]:
    return [json.loads(line) for line in message.lines]


BEGIN, LAUNCH, WORLD, END = (
    HungUp(),
    LaunchBegan(1, (), 0),
    WorldFormed(1, (), 0),
    JobEnded(0, "over"),
)
STEP = Step(1, 1, 0.5, 8, 1)


class Writer:
    """The writer's end of a channel."""

    def __init__(self, link: RunLink) -> None:
        ours, self.channel = pair()
        link.connect(ours)
        self.opening, *self._told = self.channel.drain()

    def told(self) -> list[ToRunFiles]:
        """Return what was sent since the last time."""
        told, self._told = [*self._told, *self.channel.drain()], []
        return [_MESSAGES.decode(line) for line in told]

    def lines(self) -> list[Record]:
        """Return the records that were sent since the last time."""
        return [record for lines in self.journal() for record in records_of(lines)]

    def journal(self) -> list[JournalLines]:
        """Return the lines for the journal that were sent since the last time."""
        return [message for message in self.told() if isinstance(message, JournalLines)]

    def close(self) -> None:
        for fd in self.opening.pop(FDS, ()):
            os.close(fd)
        self.channel.close()


class Linked:
    """A link, its owner, and the writers so far."""

    def __init__(self, *said: str) -> None:
        self.reactor = Reactor()
        self.lease = os.open(os.devnull, os.O_RDONLY)
        self.link = RunLink(self.reactor, job_of(), self.lease, said)
        self.heard: list[Warned | RunDirectoryLost] = []
        self.records: list[Entry[Any]] = []
        self.link.serve(self.records.append, self.heard.append)
        self._writers: list[Writer] = []

    def connect(self) -> Writer:
        self._writers.append(Writer(self.link))
        return self._writers[-1]

    def turn(self) -> None:
        """Handle what has come."""
        self.reactor.run_once(0.0)

    def answer(self, writer: Writer, message: OfRunFiles) -> None:
        writer.channel.post(to_message(message))
        self.turn()

    def close(self) -> None:
        self.link.close(is_over=False)
        for writer in self._writers:
            writer.close()
        self.reactor.close()
        os.close(self.lease)


@pytest.fixture
def linked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Linked]:
    monkeypatch.setattr(run_link, "_ENDS_WITHIN_S", 0.05)
    made = Linked()
    yield made
    made.close()


def events(records: list[Record]) -> list[str]:
    return [record["event"] for record in records]


def test_writer_is_told_the_run_and_gets_its_lease(linked: Linked) -> None:
    writer = linked.connect()

    (lease,) = writer.opening[FDS]
    assert os.path.samestat(os.fstat(lease), os.fstat(linked.lease))
    assert _MESSAGES.decode(writer.opening) == OpenRun(Path("/run"), RECORD, None)


def test_records_of_another_process_keep_their_order_and_their_age(linked: Linked) -> None:
    """Its host may have another clock."""
    writer = linked.connect()
    steps = tuple(RecordedEvent.of(Step(step, 1, 0.5, 8, 1), 5.0 * (2 - step)) for step in (1, 2))

    linked.link.take(Records(steps, "worker 3"))
    linked.link.record(LAUNCH)

    first, second, third = writer.lines()
    assert [first["step"], second["step"], third["event"]] == [1, 2, "launch"]
    assert (first["source"], third["source"]) == ("worker 3", "head")
    assert second["now"] - first["now"] == pytest.approx(5.0, abs=0.5)
    assert [entry.event.NAME for entry in linked.records] == ["step", "step", "launch"]


def test_records_wait_for_the_first_writer(linked: Linked) -> None:
    linked.link.record(BEGIN)
    linked.link.record(LAUNCH)

    writer = linked.connect()

    (message,) = writer.journal()
    assert [record["event"] for record in records_of(message)] == ["hung_up", "launch"]
    assert (message.lost, message.is_again) == (0, True)


def test_only_what_was_not_counted_is_sent_to_the_next_writer(linked: Linked) -> None:
    first = linked.connect()
    for event in (BEGIN, LAUNCH, WORLD):
        linked.link.record(event)
    linked.answer(first, Written("JournalLines", 2))
    first.channel.close()
    linked.turn()
    assert not linked.link.is_connected
    linked.link.record(STEP)

    second = linked.connect()

    (message,) = second.journal()
    assert [record["event"] for record in records_of(message)] == ["world", "step"]
    assert message.is_again is True
    linked.answer(second, Written("JournalLines", 2))
    second.channel.close()
    assert linked.connect().told() == []


def test_next_writer_takes_over_from_one_that_is_still_there(linked: Linked) -> None:
    first = linked.connect()
    linked.link.record(LAUNCH)

    second = linked.connect()

    assert events(second.lines()) == ["launch"]
    first.told()
    assert first.channel.is_closed
    linked.link.record(WORLD)
    assert events(second.lines()) == ["world"]


def test_of_lines_that_no_writer_takes_the_newest_are_kept_and_the_rest_is_counted(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_link, "_MOST_WAITING", 3)
    for step in range(5):
        linked.link.record(Step(step, 1, 0.5, 8, 1))

    (message,) = linked.connect().journal()

    assert [record["step"] for record in records_of(message)] == [2, 3, 4]
    assert message.lost == 2


def test_lines_that_the_client_could_not_write_are_counted_with_the_first_ones() -> None:
    reactor = Reactor()
    link = RunLink(reactor, job_of(lost_lines=2), 2)
    link.record(LAUNCH)

    writer = Writer(link)

    assert [message.lost for message in writer.told()] == [2]
    link.close(is_over=False)
    writer.close()
    reactor.close()


@pytest.mark.parametrize(("count", "lost"), [(0, 2), (1, 1), (2, 0), (3, 0)])
def test_line_that_a_hanging_writer_was_sent_is_counted_if_it_dies_with_it(
    linked: Linked, monkeypatch: pytest.MonkeyPatch, count: int, lost: int
) -> None:
    monkeypatch.setattr(run_link, "_MOST_WAITING", 3)
    hanging = linked.connect()
    for step in range(5):
        linked.link.record(Step(step, 1, 0.5, 8, 1))
    assert len(hanging.lines()) == 5

    linked.answer(hanging, Written("JournalLines", count))
    hanging.channel.close()
    linked.turn()

    (message,) = linked.connect().journal()
    newest = range(max(2, count), 5)
    assert [record["step"] for record in records_of(message)] == list(newest)
    assert message.lost == lost


def test_lines_that_a_slow_writer_was_sent_are_lost_only_to_the_memory_of_the_head(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_link, "_MOST_WAITING", 3)
    slow = linked.connect()
    for step in range(5):
        linked.link.record(Step(step, 1, 0.5, 8, 1))

    linked.answer(slow, Written("JournalLines", 5))
    linked.link.record(LAUNCH)

    assert [message.lost for message in slow.told()] == [0] * 6


def test_what_the_writer_tells_reaches_the_owner(linked: Linked) -> None:
    writer = linked.connect()
    told = [Warned("the disk is full"), RunDirectoryLost(ExitCode(76), "it is another run's")]
    for message in told:
        linked.answer(writer, message)

    assert linked.heard == told


def test_directory_is_looked_at_by_the_writer_alone_and_once_at_a_time(linked: Linked) -> None:
    linked.link.check()  # nobody is there

    writer = linked.connect()
    linked.link.check()
    linked.link.check()  # its disk hangs, perhaps

    assert writer.told() == [CheckDirectory()]
    linked.answer(writer, Written("CheckDirectory", 1))
    linked.link.check()
    assert writer.told() == [CheckDirectory()]


def test_lines_for_logs_that_a_slow_disk_does_not_take_are_counted_at_their_place(
    linked: Linked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run_link._MOST_AHEAD, "LogText", 4)
    linked.link.log(LogText(0, "b", "before a writer\n"))
    writer = linked.connect()
    for lines in ("one\n", "two\n", "three\n"):
        linked.link.log(LogText(0, "b", lines))
    linked.answer(writer, Written("LogText", 4))
    linked.link.log(LogText(None, "", "holdfast: here\n"))
    linked.answer(writer, Written("LogText", 15))
    linked.link.log(LogText(0, "b", "four\n", 7))

    assert [message for message in writer.told() if isinstance(message, LogText)] == [
        LogText(0, "b", "", 1),
        LogText(0, "b", "one\n"),
        LogText(None, "", "holdfast: here\n"),
        LogText(0, "b", "", 2),
        LogText(0, "b", "four\n", 7),
    ]


def test_lines_of_the_client_begin_the_log_once() -> None:
    linked = Linked("starting train.py", "2 hosts")
    with contextlib.closing(linked):
        logs = [
            [each.lines for each in linked.connect().told() if isinstance(each, LogText)]
            for _ in range(2)
        ]

    assert logs == [["holdfast: starting train.py\nholdfast: 2 hosts\n"], []]


@pytest.mark.parametrize("is_over", [True, False])
def test_close_waits_until_all_is_counted(
    linked: Linked, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    monkeypatch.setattr(run_link, "_ENDS_WITHIN_S", 90.0)
    writer = linked.connect()
    for event in (WORLD, END):
        linked.link.record(event)
    for message in (Written("JournalLines", 1), Warned("late"), Written("JournalLines", 1)):
        writer.channel.post(to_message(message))

    linked.link.close(is_over=is_over)

    kinds = [type(message) for message in writer.told()]
    assert kinds == [JournalLines] * 2 + [JobOver] * is_over
    assert linked.heard == [Warned("late")]
    assert writer.channel.is_closed


@pytest.mark.parametrize("is_dead", [False, True], ids=["hangs", "dies"])
def test_close_waits_for_no_writer_that_counts_nothing(linked: Linked, *, is_dead: bool) -> None:
    writer = linked.connect()
    linked.link.record(END)
    if is_dead:
        writer.channel.close()

    linked.link.close(is_over=True)

    assert not linked.link.is_connected


def test_writer_that_breaks_the_protocol_is_left_alone(linked: Linked) -> None:
    ours, theirs = pair()
    linked.link.connect(ours)
    linked.link.record(END)
    os.write(theirs.fileno(), b"no JSON\n")

    linked.link.close(is_over=False)

    assert not linked.link.is_connected
    Channel.close(theirs)
