"""Messages between processes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from holdfast.runtime.system.channel import MessageKinds, to_message
from holdfast.runtime.system.codec import WrongValue


@dataclass(frozen=True)
class Ask:
    workers: tuple[int, ...]
    is_urgent: bool = False


@dataclass(frozen=True)
class Leave:
    pass


_KINDS: MessageKinds[Ask | Leave] = MessageKinds(Ask | Leave)


@pytest.mark.parametrize("message", [Ask((1, 2)), Ask((), is_urgent=True), Leave()])
def test_message_is_read_as_it_was_sent(message: Ask | Leave) -> None:
    assert _KINDS.decode(to_message(message)) == message


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"kind": "Other"}, "no message 'Other'"),
        ({}, "no message None"),
        ({"kind": "Ask"}, "workers is missing"),
        ({"kind": "Leave", "why": ""}, "why is unknown"),
    ],
)
def test_line_that_is_no_message_of_the_link_is_refused(
    line: dict[str, object], reason: str
) -> None:
    with pytest.raises(WrongValue, match=reason):
        _KINDS.decode(line)
