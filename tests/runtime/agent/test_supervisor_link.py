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
