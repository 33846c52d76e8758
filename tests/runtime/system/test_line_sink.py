"""Lines for a reader that is slow, held, full or gone; nobody who writes ever waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.system.line_sink import ERASE, LineSink
from holdfast.runtime.system.signals import SENT_BY_BATCH_SYSTEMS

BOUND_S = 90.0


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """A pipe: the end that is read, and the end that is written."""
    reader, writer = os.pipe()
    yield reader, writer
    for fd in (reader, writer):
        try:
            os.close(fd)
        except OSError:  # the test has closed it
            continue


def _fill(writer: int) -> int:
    """Write until the pipe takes no more; return the bytes."""
    os.set_blocking(writer, False)
    written = 0
    try:
        while True:
            written += os.write(writer, b"." * 4096)
    except BlockingIOError:
        os.set_blocking(writer, True)
        return written


def _read(reader: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += os.read(reader, size - len(data))
    return data


def test_lines_arrive_in_their_order(ends: tuple[int, int]) -> None:
    reader, writer = ends
    sink = LineSink(writer)

    for number in range(100):
        sink.put(b"line %d\n" % number)
    sink.put(b"")
    sink.close(BOUND_S)

    os.close(writer)
    expected = b"".join(b"line %d\n" % number for number in range(100))
    assert _read(reader, len(expected)) == expected
    assert os.read(reader, 1) == b""
    assert sink.dropped == 0


def test_reader_that_takes_nothing_costs_lines_and_no_time(ends: tuple[int, int]) -> None:
    reader, writer = ends
    filled = _fill(writer)
    sink = LineSink(writer, queue_bytes=30)

    for number in range(10):
        sink.put(b"line %d...\n" % number)  # ten bytes each

    assert sink.dropped == 7
    _read(reader, filled)
    assert _read(reader, 30) == b"line 0...\nline 1...\nline 2...\n"
    sink.close(BOUND_S)


def test_dropped_lines_are_told_to_a_reader_that_comes_back(ends: tuple[int, int]) -> None:
    reader, writer = ends
    filled = _fill(writer)
    sink = LineSink(writer, queue_bytes=20)
    for _ in range(5):
        sink.put(b"0123456789\n")  # only the first one fits
    _read(reader, filled + 11)

    sink.put(b"later\n")
    sink.close(BOUND_S)

    os.close(writer)
    rest = b"".join(iter(lambda: os.read(reader, 4096), b""))
    assert rest == b"holdfast: output: 4 lines were dropped here, because none was taken\nlater\n"


@pytest.mark.parametrize("place", ["closed pipe", "full disk"])
def test_reader_that_is_gone_costs_lines(ends: tuple[int, int], place: str) -> None:
    reader, writer = ends
    if place == "closed pipe":
        os.close(reader)
    else:
        os.dup2(os.open("/dev/full", os.O_WRONLY), writer)
    sink = LineSink(writer)

    sink.put(b"one\ntwo\n")
    sink.put(b"three\n")
    sink.close(BOUND_S)

    assert sink.dropped == 3


def test_close_waits_no_longer_than_it_may(ends: tuple[int, int]) -> None:
    _reader, writer = ends
    _fill(writer)
    sink = LineSink(writer)
    sink.put(b"nobody reads this\n")
    sink.put(b"or this\n")

    sink.close(0.01)

    assert sink.dropped == 1  # the first one is in the hands of the kernel


def test_terminal_that_somebody_else_made_non_blocking_takes_all(ends: tuple[int, int]) -> None:
    reader, writer = ends
    os.set_blocking(writer, False)
    sink = LineSink(writer)
    lines = b"x" * 99 + b"\n"

    sink.put(lines * 2000)  # more than the pipe holds

    assert _read(reader, 200_000) == lines * 2000
    sink.close(BOUND_S)
    assert sink.dropped == 0


def test_signals_of_batch_systems_are_left_to_the_main_thread(ends: tuple[int, int]) -> None:
    """Else one that comes when the main thread blocks them changes the exit code."""
    sink = LineSink(ends[1])
    status = Path(f"/proc/self/task/{sink._thread.native_id}/status").read_text()
    sink.close(BOUND_S)

    mask = next(line for line in status.splitlines() if line.startswith("SigBlk:"))
    blocked = int(mask.split()[1], 16)
    assert all(blocked >> (number - 1) & 1 for number in SENT_BY_BATCH_SYSTEMS)


def test_live_line_stands_below_the_lines_and_goes_at_the_end(ends: tuple[int, int]) -> None:
    reader, writer = ends
    sink = LineSink(writer)
    expected = b"one\n" + ERASE + b"step 1"

    sink.put(b"one\n")
    seen = _read(reader, len(b"one\n"))
    sink.draw(b"step 1")
    seen += _read(reader, len(ERASE + b"step 1"))
    assert seen == expected

    sink.put(b"two\n")
    expected = ERASE + b"two\n" + ERASE + b"step 1"
    assert _read(reader, len(expected)) == expected

    sink.draw(b"")
    sink.close(BOUND_S)
    assert _read(reader, len(ERASE)) == ERASE


def test_terminal_that_is_held_collects_no_live_lines(ends: tuple[int, int]) -> None:
    reader, writer = ends
    filled = _fill(writer)
    sink = LineSink(writer)
    sink.put(b"one\n")

    for number in range(1000):
        sink.draw(b"step %d" % number)

    _read(reader, filled)
    sink.close(BOUND_S)
    os.close(writer)
    seen = b""
    while data := os.read(reader, 4096):
        seen += data
    assert seen in (
        b"one\n" + ERASE + b"step 999",  # its write began before the first live line
        ERASE + b"one\n" + ERASE + b"step 999",
    )
    assert sink.dropped == 0
