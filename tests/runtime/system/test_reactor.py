from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial

import pytest

from holdfast.runtime.system.channel import LineChannel, Message
from holdfast.runtime.system.reactor import Reactor


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    reactor = Reactor()
    yield reactor
    reactor.close()


@pytest.fixture
def pipes() -> Iterator[list[tuple[int, int]]]:
    pipes = [os.pipe() for _ in range(3)]
    yield pipes
    for fd in (fd for ends in pipes for fd in ends):
        os.close(fd)


def test_handlers_are_called_in_their_order(reactor: Reactor, pipes: list[tuple[int, int]]) -> None:
    called: list[int] = []
    for number, order in enumerate((2, 0, 1)):
        reactor.watch(pipes[number][0], partial(called.append, order), order=order)
        os.write(pipes[number][1], b"x")

    reactor.run_once(0.0)

    assert called == [0, 1, 2]


def test_forgotten_source_is_not_called_even_if_it_was_ready(
    reactor: Reactor, pipes: list[tuple[int, int]]
) -> None:
    called: list[str] = []

    def first() -> None:
        called.append("first")
        reactor.forget(pipes[1][0])
        reactor.forget(pipes[1][0])

    reactor.watch(pipes[0][0], first, order=0)
    reactor.watch(pipes[1][0], lambda: called.append("second"))
    for pipe in pipes:
        os.write(pipe[1], b"x")

    reactor.run_once(0.0)

    assert called == ["first"]


def test_messages_come_one_by_one_and_the_end_once(
    reactor: Reactor, ends: tuple[LineChannel, LineChannel]
) -> None:
    left, right = ends
    heard: list[Message | str] = []
    reactor.watch_channel(right, heard.append, lambda: heard.append("end"))
    left.send({"n": 1})
    left.send({"n": 2})
    left.close()

    for _ in range(3):
        reactor.run_once(0.0)

    assert heard == [{"n": 1}, {"n": 2}, "end"]


def test_peer_that_breaks_the_protocol_is_at_its_end(
    reactor: Reactor, ends: tuple[LineChannel, LineChannel]
) -> None:
    left, right = ends
    heard: list[Message | str] = []
    reactor.watch_channel(right, heard.append, lambda: heard.append("end"))
    os.write(left.write_fd, b"nonsense\n")

    reactor.run_once(0.0)

    assert heard == ["end"]


def test_channel_that_was_forgotten_by_its_own_message_has_no_end(
    reactor: Reactor, ends: tuple[LineChannel, LineChannel]
) -> None:
    left, right = ends
    heard: list[Message | str] = []

    def hear(message: Message) -> None:
        heard.append(message)
        reactor.forget(right)

    reactor.watch_channel(right, hear, lambda: heard.append("end"))
    left.send({"n": 1})
    left.close()

    reactor.run_once(0.0)

    assert heard == [{"n": 1}]


def test_what_was_posted_leaves_while_the_loop_runs(
    reactor: Reactor, ends: tuple[LineChannel, LineChannel]
) -> None:
    left, right = ends
    heard: list[int] = []
    reactor.watch_channel(left, lambda _: None, lambda: None)
    reactor.watch_channel(right, lambda message: heard.append(message["n"]), lambda: None)
    for n in range(10):
        left.post({"n": n, "text": "x" * 100_000})

    while len(heard) < 10:
        reactor.run_once(1.0)

    assert heard == list(range(10))
    assert not left.wants_write


def test_message_that_was_read_with_an_earlier_one_is_not_lost(
    reactor: Reactor, ends: tuple[LineChannel, LineChannel]
) -> None:
    """The socket has nothing left to read, so a selector alone would wait for ever."""
    left, right = ends
    left.send({"n": 1})
    left.send({"n": 2})
    assert right.receive() == {"n": 1}

    heard: list[Message] = []
    reactor.watch_channel(right, heard.append, lambda: None)
    reactor.run_once(None)

    assert heard == [{"n": 2}]


def test_peer_that_takes_nothing_is_at_its_end(
    reactor: Reactor, ends: tuple[LineChannel, LineChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.system.channel._MAX_OUTBOX_BYTES", 1_000_000)
    left, right = ends
    heard: list[Message | str] = []
    reactor.watch_channel(left, heard.append, lambda: heard.append("end"))
    right.send({"n": 1})

    for _ in range(20):
        left.post({"text": "x" * 100_000})
    reactor.run_once(None)

    assert heard == [{"n": 1}, "end"]
