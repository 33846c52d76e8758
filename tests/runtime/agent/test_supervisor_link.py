from __future__ import annotations

import pytest

from holdfast.runtime.agent.supervisor_link import SupervisorLink
from holdfast.runtime.system.channel import Message, pair


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
    monkeypatch.setattr("holdfast.runtime.agent.supervisor_link._KEPT_EVENTS", 3)
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
        link.look(start + second)


def test_supervisor_that_stands_still_is_absent_and_finds_its_events_when_it_comes_back() -> None:
    ours, theirs = pair()
    link = SupervisorLink(heartbeat_timeout_s=6.0)
    link.attach(ours, {"kind": "agent_ready"})
    theirs.drain()

    _look(link, 100.0, 6)
    assert link.is_present
    _look(link, 107.0, 1)
    assert not link.is_present
    link.tell({"kind": "missed"})
    assert theirs.drain() == []

    link.heard()

    assert link.is_present
    assert _without_time(theirs.drain()) == [{"kind": "missed"}]
    link.detach()
    theirs.close()


def test_supervisor_that_says_something_now_and_then_is_present() -> None:
    ours, theirs = pair()
    link = SupervisorLink(heartbeat_timeout_s=6.0)
    link.attach(ours, {"kind": "agent_ready"})

    for second in range(0, 100, 3):
        link.heard()
        _look(link, 100.0 + second, 2)

    assert link.is_present
    link.detach()
    theirs.close()


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
