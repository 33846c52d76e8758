"""The agent and its supervisor: what is told, what is kept for the next one, who stands still."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from holdfast.runtime.host import supervisor_link
from holdfast.runtime.host.supervisor_link import (
    LaunchLog,
    PeerSilence,
    StandingStill,
    SupervisorLink,
    kill_standing_parent,
)
from holdfast.runtime.system.channel import Channel, Message, pair


def _without_time(messages: list[Message]) -> list[Message]:
    return [{name: value for name, value in m.items() if name != "now"} for m in messages]


def test_supervisor_is_greeted_and_told_what_it_missed() -> None:
    ours, theirs = pair()
    link = SupervisorLink()
    link.tell({"kind": "early"})

    link.attach(ours, {"kind": "agent_ready"})
    link.tell({"kind": "late"})

    messages = theirs.drain()
    assert _without_time(messages) == [{"kind": k} for k in ("agent_ready", "early", "late")]
    assert all(isinstance(message["now"], float) for message in messages)
    link.detach()
    theirs.close()


def test_events_wait_again_after_the_supervisor_is_gone() -> None:
    link = SupervisorLink()
    first, _first_end = pair()
    link.attach(first, {"kind": "agent_ready"})
    link.detach()
    link.detach()
    link.tell({"kind": "between"})

    second, second_end = pair()
    link.attach(second, {"kind": "agent_ready"})

    told = _without_time(second_end.drain())
    assert told == [{"kind": "agent_ready"}, {"kind": "between"}]
    for channel in (second, second_end, _first_end):
        channel.close()


def test_only_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.host.supervisor_link._KEPT_EVENTS", 3)
    link = SupervisorLink()
    for n in range(5):
        link.tell({"kind": "told", "n": n})

    ours, theirs = pair()
    link.attach(ours, {"kind": "agent_ready", "n": -1})

    assert [message["n"] for message in theirs.drain()] == [-1, 2, 3, 4]
    link.detach()
    theirs.close()


def _look(link: SupervisorLink, start: float, seconds: int) -> None:
    for second in range(seconds + 1):
        link.poll(start + second)


@pytest.fixture
def linked() -> Iterator[tuple[SupervisorLink, Channel]]:
    """A link with a supervisor, and the supervisor's end of the connection."""
    ours, theirs = pair()
    link = SupervisorLink(heartbeat_timeout_s=6.0)
    link.attach(ours, {"kind": "agent_ready"})
    theirs.drain()
    yield link, theirs
    link.detach()
    theirs.close()


def test_supervisor_that_stands_still_is_absent_and_finds_its_events_when_it_comes_back(
    linked: tuple[SupervisorLink, Channel],
) -> None:
    link, theirs = linked

    _look(link, 100.0, 6)
    assert link.is_present
    _look(link, 107.0, 1)
    assert not link.is_present
    link.tell({"kind": "missed"})
    assert theirs.drain() == []

    link.heard()

    assert link.is_present
    assert _without_time(theirs.drain()) == [{"kind": "missed"}]


def test_supervisor_that_says_something_now_and_then_is_present(
    linked: tuple[SupervisorLink, Channel],
) -> None:
    link, _ = linked

    for second in range(0, 100, 3):
        link.heard()
        _look(link, 100.0 + second, 2)

    assert link.is_present


def test_only_what_was_told_before_is_repeated() -> None:
    first, first_end = pair()
    link = SupervisorLink()
    link.attach(first, {"kind": "agent_ready"})
    link.tell({"kind": "worker_started", "worker": 0})
    link.detach()
    link.tell({"kind": "worker_exited", "worker": 0})

    assert _without_time(list(link.repeat())) == [{"kind": "worker_started", "worker": 0}]
    first_end.close()


def test_process_that_connects_anew_is_not_killed_by_its_own_succession() -> None:
    first, first_end = pair()
    second, second_end = pair()
    link = SupervisorLink()
    link.attach(first, {"kind": "agent_ready"})

    link.depose(second)  # both ends are of this very process

    assert link.channel is None
    for channel in (first_end, second, second_end):
        channel.close()


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(1.0, 5.0), (6.0, 6.0)])
def test_peer_may_be_silent_for_some_seconds_even_if_workers_may_not(
    timeout_s: float, limit_s: float
) -> None:
    silence = PeerSilence(timeout_s)

    found = [silence.poll(100.0 + second) for second in range(round(limit_s) + 2)]

    assert found[:-1] == [None] * (round(limit_s) + 1)
    assert found[-1] == pytest.approx(limit_s + 1.0)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The processes that are stopped."""
    pids: set[int] = set()
    monkeypatch.setattr(supervisor_link, "is_stopped", pids.__contains__)
    return pids


def test_only_a_process_that_was_stopped_for_too_long_is_named(stopped: set[int]) -> None:
    still = StandingStill(2.0)
    stopped |= {11, 12}

    for second in range(3):
        assert still.poll((11, 12, 13), 100.0 + second / 2) == {}
    stopped.remove(12)
    for second in range(3, 5):
        assert still.poll((11, 12, 13), 100.0 + second / 2) == {}

    assert still.poll((11, 12, 13), 102.5) == {11: 2.5}


def test_process_that_goes_on_for_a_moment_stands_still_anew(stopped: set[int]) -> None:
    still = StandingStill(2.0)

    for half in range(40):
        stopped.symmetric_difference_update({11} if half % 4 == 0 else ())
        assert still.poll((11,), 100.0 + half / 2) == {}


@pytest.mark.parametrize(
    ("is_parent", "stands", "is_killed"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_only_a_stopped_parent_of_this_very_process_is_killed(
    stopped: set[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_parent: bool,
    stands: bool,
    is_killed: bool,
) -> None:
    parent = os.getppid() if is_parent else 1 << 30
    stopped |= {parent} if stands else set()
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: killed.append(words))

    kill_standing_parent(parent)

    assert killed == [(parent, signal.SIGKILL)] * is_killed


def report(worker: int, kind: str, **fields: object) -> Message:
    return {"kind": "worker_report", "worker": worker, "report": {"kind": kind, **fields}}


def test_newest_event_of_each_kind_is_kept_in_the_order_of_time() -> None:
    log = LaunchLog()
    log.begin({"kind": "launch"})
    joined = report(0, "joined")
    newest = report(1, "world", generation=3)

    for event in (joined, report(1, "world", generation=2), newest):
        log.note(event)

    assert log.launch == {"kind": "launch"}
    assert log.events == (joined, newest)


def test_reports_of_different_workers_do_not_replace_each_other() -> None:
    log = LaunchLog()
    events = (report(0, "complete"), report(1, "complete"))
    for event in events:
        log.note(event)

    assert log.events == events


def test_checkpoints_of_months_are_one_event() -> None:
    log = LaunchLog()
    for step in range(10_000):
        log.note(report(step % 3, "checkpoint", step=step))

    assert log.events == (report(0, "checkpoint", step=9_999),)


def test_what_no_decision_needs_is_not_kept() -> None:
    log = LaunchLog()
    for event in ({"kind": "pong"}, {"kind": "warm", "pid": 3}, report(0, "notice", text="hi")):
        log.note(event)

    assert log.events == ()


def test_wish_to_make_room_is_kept_once() -> None:
    log = LaunchLog()
    log.note({"kind": "renewing", "worker": 0, "now": 1.0})
    log.note({"kind": "renewing", "worker": 0, "now": 2.0})

    assert log.events == ({"kind": "renewing", "worker": 0, "now": 2.0},)


def test_next_launch_begins_with_nothing() -> None:
    log = LaunchLog()
    log.note({"kind": "worker_exited", "worker": 2})
    log.note({"kind": "launch_ended"})

    log.begin({"kind": "launch", "spent": 1})

    assert log.events == ()
    assert log.launch == {"kind": "launch", "spent": 1}


def test_launch_is_known_as_people_know_it() -> None:
    log = LaunchLog()
    assert log.summary is None

    config = {"options": {"script": "/a/train.py"}, "generation": 4, "workers": [4, 5]}
    log.begin({"kind": "launch", "config": config, "relaunch": 1})

    assert log.summary == {
        "script": "/a/train.py", "generation": 4, "workers": [4, 5], "relaunch": 1,
    }  # fmt: skip
