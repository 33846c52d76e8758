from __future__ import annotations

import contextlib
import os
import resource
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.system.channel import (
    FDS,
    Channel,
    ChannelError,
    LineChannel,
    Listener,
    Message,
    connect,
)
from holdfast.runtime.system.witnessed_time import Bound


@pytest.fixture
def raw() -> Iterator[tuple[socket.socket, Channel]]:
    """A peer that may say anything, and the channel that has to bear it."""
    left, right = socket.socketpair()
    channel = Channel(right)
    yield left, channel
    left.close()
    channel.close()


@pytest.fixture(params=[Channel, LineChannel])
def raw_lines(request: pytest.FixtureRequest) -> Iterator[tuple[socket.socket, LineChannel]]:
    """The same for lines alone, which may come over a socket as well."""
    left, right = socket.socketpair()
    is_plain = request.param is LineChannel
    channel = LineChannel(fd := right.detach(), fd) if is_plain else Channel(right)
    yield left, channel
    left.close()
    channel.close()


def _same_file(left: int, right: int) -> bool:
    return os.path.sameopenfile(left, right)


def test_messages_arrive_whole_and_in_order(ends: tuple[LineChannel, LineChannel]) -> None:
    left, right = ends
    messages: list[Message] = [
        {"kind": "a", "text": "line\nbreak ü \u2028"},
        {"kind": "b", "n": [1, None]},
    ]

    for message in messages:
        left.send(message)

    assert [right.receive(), right.receive()] == messages


def test_half_a_message_at_the_end_is_dropped(raw_lines: tuple[socket.socket, LineChannel]) -> None:
    peer, channel = raw_lines
    peer.sendall(b'{"n":1}\n{"n":')
    peer.close()

    assert channel.drain() == [{"n": 1}]
    assert channel.is_closed


def test_message_may_arrive_byte_by_byte(raw_lines: tuple[socket.socket, LineChannel]) -> None:
    peer, channel = raw_lines
    received = []

    for byte in b'{"n":1}\n{"n":2}\n':
        peer.sendall(bytes([byte]))
        received += channel.drain()

    assert received == [{"n": 1}, {"n": 2}]


def test_descriptors_stay_with_their_messages(unix_ends: tuple[Channel, Channel]) -> None:
    left, right = unix_ends
    files = [os.memfd_create(f"file-{n}") for n in range(3)]
    left.send({"n": 0})
    left.send({"n": 1}, files[:1])
    left.post({"n": 2})
    left.post({"n": 3}, files[1:])

    messages = right.drain()

    assert [message["n"] for message in messages] == [0, 1, 2, 3]
    assert FDS not in messages[0]
    assert _same_file(messages[1][FDS][0], files[0])
    assert [_same_file(a, b) for a, b in zip(messages[3][FDS], files[1:], strict=True)] == [
        True
    ] * 2
    assert not any(
        os.get_inheritable(fd) for message in (messages[1], messages[3]) for fd in message[FDS]
    )
    for fd in (*files, *messages[1][FDS], *messages[3][FDS]):
        os.close(fd)


def test_descriptors_that_nobody_claims_are_closed_with_the_channel(
    raw: tuple[socket.socket, Channel],
) -> None:
    peer, channel = raw
    read_end, write_end = os.pipe()
    socket.send_fds(peer, [b"{}\n"], [write_end])
    os.close(write_end)
    assert channel.drain() == [{}]

    channel.close()

    assert os.read(read_end, 1) == b""
    os.close(read_end)


def test_two_ends_that_serve_each_other_lose_nothing_and_end_together(
    ends: tuple[LineChannel, LineChannel],
) -> None:
    left, right = ends
    text = "x" * 100_000
    for n in range(20):
        left.post({"n": n, "text": text})
        right.post({"n": -n, "text": text})

    def answer() -> None:
        for messages in right.serve(Bound(60.0)):
            heard.extend(message["n"] for message in messages)

    heard: list[int] = []
    answering = threading.Thread(target=answer)
    answering.start()
    received: list[int] = []
    for messages in left.serve(Bound(60.0)):
        received += [message["n"] for message in messages]
        if len(received) == 20 and not left.wants_write:
            break
    left.close()
    answering.join(60.0)

    assert received == [-n for n in range(20)]
    assert heard == [*range(20)]
    assert right.is_closed


def test_post_of_descriptors_does_not_wait_for_a_peer_that_does_not_read(
    unix_ends: tuple[Channel, Channel],
) -> None:
    left, right = unix_ends
    text = "x" * 100_000

    def post() -> None:
        for n in range(20):
            left.post({"n": n, "text": text}, [0])

    posting = threading.Thread(target=post, daemon=True)
    posting.start()
    posting.join(10.0)

    assert not posting.is_alive()
    assert left.wants_write
    received: list[Message] = []
    while left.wants_write:
        received += right.drain()
        left.flush()
    received += right.drain()
    for message in received:
        os.close(*message[FDS])
    assert [message["n"] for message in received] == list(range(20))


def test_what_a_dead_peer_has_said_can_still_be_read(ends: tuple[LineChannel, LineChannel]) -> None:
    left, right = ends
    right.send({"kind": "leaving"})
    right.close()

    left.post({"kind": "too late"})
    left.post({"kind": "too late"})

    assert left.drain() == [{"kind": "leaving"}]
    assert left.is_closed


def test_send_to_a_closed_peer_raises(ends: tuple[LineChannel, LineChannel]) -> None:
    left, right = ends
    right.close()

    with pytest.raises(BrokenPipeError):
        left.send({"n": 1})


@pytest.mark.parametrize(
    "line",
    [b"no json\n", b"[1]\n", b'"text"\n', b"\xff\n", b'{"@fds":1}\n', b'{"@fds":"x"}\n', b"\n"],
)
def test_line_that_is_no_message_is_refused(
    raw: tuple[socket.socket, Channel], line: bytes
) -> None:
    peer, channel = raw
    peer.sendall(line)

    with pytest.raises(ChannelError, match="message"):
        channel.drain()


def test_line_without_end_is_refused(
    raw_lines: tuple[socket.socket, LineChannel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.runtime.system.channel._MAX_LINE_BYTES", 1000)
    peer, channel = raw_lines
    peer.sendall(b"x" * 2000)

    with pytest.raises(ChannelError, match="longer than 1000 bytes"):
        channel.drain()


@pytest.mark.parametrize("depth", [0, 30], ids=["short", "longer than a socket's name may be"])
def test_listener_serves_several_and_leaves_nothing(tmp_path: Path, depth: int) -> None:
    directory = tmp_path.joinpath(*["deep"] * depth)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "agent.sock"
    listener = Listener(path)
    assert path.stat().st_mode & 0o777 == 0o600

    callers = [connect(path), connect(path)]
    answers = [listener.accept(), listener.accept()]
    for number, answer in enumerate(answers):
        assert answer is not None
        answer.send({"n": number})

    assert [caller.receive() for caller in callers] == [{"n": 0}, {"n": 1}]
    for channel in (*callers, *answers):
        assert channel is not None
        channel.close()
    listener.close()
    assert list(directory.iterdir()) == []


def test_socket_that_a_killed_process_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.close()

    listener = Listener(path)

    channel = connect(path)
    assert channel.peer_pid == os.getpid()
    channel.close()
    listener.close()


def test_socket_in_use_is_left_alone(tmp_path: Path) -> None:
    first = Listener(tmp_path / "agent.sock")

    with pytest.raises(OSError, match="in use"):
        Listener(tmp_path / "agent.sock")

    connect(tmp_path / "agent.sock").close()
    first.close()


def test_other_users_are_neither_let_in_nor_spoken_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lease that anybody may write could name a socket that says what it likes."""
    listener = Listener(tmp_path / "agent.sock")
    caller = connect(tmp_path / "agent.sock")
    monkeypatch.setattr(os, "getuid", lambda: 12345)

    assert listener.accept() is None
    with pytest.raises(PermissionError, match="another user's process listens there"):
        connect(listener.path)

    assert caller.receive() is None
    caller.close()
    listener.close()


def test_connection_that_has_no_descriptor_left_is_ended(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "socket")
    first, second = connect(listener.path), connect(listener.path)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most_used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_used + 1, before[1]))
    taken = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(first.fileno()))
        assert listener.accept() is None
        assert first.receive() is None
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    served = listener.accept()
    assert served is not None
    served.send({"kind": "hello"})
    assert second.receive() == {"kind": "hello"}
    for open_one in (first, second, served, listener):
        open_one.close()
