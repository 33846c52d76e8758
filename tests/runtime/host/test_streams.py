"""stdout and stderr of a job: one sink or two, and the exchange of both for another client's."""

from __future__ import annotations

import os
import select
from collections.abc import Iterator
from pathlib import Path

import pytest
from open_files import open_files

from holdfast.runtime.host import output as module
from holdfast.runtime.host.output import Streams

BOUND_S = 90.0


class Client:
    """A client's stdout and stderr, and what has come there."""

    def __init__(self, out: Path, err: Path) -> None:
        self.files = out, err
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.fds = os.open(out, flags), os.open(err, flags)

    @property
    def shown(self) -> tuple[str, str]:
        """What stands in both files."""
        out, err = (path.read_text() for path in self.files)
        return out, err


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """The client that shows the job: other descriptors in place of our own 1 and 2."""
    client = Client(tmp_path / "out", tmp_path / "err")
    monkeypatch.setattr(module, "OUT", client.fds[0])
    monkeypatch.setattr(module, "ERR", client.fds[1])
    yield client
    for fd in client.fds:
        os.close(fd)


def test_both_keep_their_order_where_they_are_one_file(client: Client) -> None:
    out, err = client.fds
    os.dup2(out, err)
    streams = Streams()
    assert streams[out] is streams[err]

    for number in range(100):
        streams[(out, err)[number % 2]].put(b"line %d\n" % number)
    streams.close(BOUND_S)

    assert client.shown == ("".join(f"line {number}\n" for number in range(100)), "")


def test_lines_go_to_the_next_client_from_the_exchange_on(client: Client, tmp_path: Path) -> None:
    streams = Streams()
    for fd, path in zip(client.fds, client.files, strict=True):
        streams.put(fd, b"before\n")
        _wait_for(path, "before\n")
    successor = Client(tmp_path / "next out", tmp_path / "next err")

    for ours, theirs in zip(client.fds, successor.fds, strict=True):
        os.dup2(theirs, ours)
        os.close(theirs)
    streams.redirect()
    streams.put(client.fds[0], b"after\n")
    streams.close(BOUND_S)

    assert client.shown == ("before\n", "before\n")
    assert successor.shown == ("after\n", "")
    assert streams.dropped == 0


def test_terminal_of_the_last_client_that_takes_nothing_holds_up_nobody(client: Client) -> None:
    """A write to it hangs; what the next client is shown does not wait for that."""
    out, _ = client.fds
    held_read, held_write = _full_pipe()
    os.dup2(held_write, out)
    streams = Streams()
    streams[out].put(b"before\n")

    next_read, next_write = os.pipe()
    os.dup2(next_write, out)
    streams.redirect()
    streams[out].put(b"after\n")

    assert b"after\n" in _until(next_read, b"after\n")
    for fd in (held_read, held_write, next_read, next_write):
        os.close(fd)
    streams.close(BOUND_S)


def test_lines_that_were_lost_are_counted_for_all_clients(client: Client) -> None:
    out, _ = client.fds
    streams = Streams()
    for _ in range(2):
        read_end, write_end = os.pipe()
        os.close(read_end)
        os.dup2(write_end, out)
        os.close(write_end)
        streams.redirect()
        for _ in range(3):
            streams[out].put(b"to nobody\n")
        streams[out].close(BOUND_S)

    assert streams.dropped == 6
    streams.close(BOUND_S)


def test_streams_that_are_closed_already_lose_their_lines_only(client: Client) -> None:
    out, err = client.fds
    before = open_files()
    copies = [os.dup(fd) for fd in client.fds]
    for fd in client.fds:
        os.close(fd)
    streams = Streams()

    streams[err].put(b"to nobody\n")
    streams.close(BOUND_S)

    assert streams.dropped == 1
    for copy, fd in zip(copies, (out, err), strict=True):
        os.dup2(copy, fd)
        os.close(copy)
    assert open_files() == before


def _wait_for(path: Path, text: str) -> None:
    while path.read_text() != text:
        select.select([], [], [], 0.001)


def _full_pipe() -> tuple[int, int]:
    """Return a pipe that takes nothing more, the next write to which hangs."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    while select.select([], [write_end], [], 0)[1]:
        os.write(write_end, b"." * 4096)
    os.set_blocking(write_end, True)
    return read_end, write_end


def _until(fd: int, end: bytes) -> bytes:
    """Read until ``end`` was read."""
    data = b""
    while end not in data:
        assert select.select([fd], [], [], BOUND_S)[0]
        data += os.read(fd, 4096)
    return data
