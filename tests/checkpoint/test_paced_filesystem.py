"""Reads that nobody waits for keep to their rate, and pause no longer than that."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.checkpoint.filesystem import PacedFileSystem


class Clock:
    """A clock that only pauses and reads move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def read_all(path: Path, clock: Clock, *, bytes_per_s: float) -> bytes:
    files = PacedFileSystem(path.parent, bytes_per_s, pause=clock.pause, clock=clock)
    handle = files.open_read(path)
    content = b""
    while True:
        buffer = bytearray(1000)
        count = files.read(handle, memoryview(buffer), len(content))
        if not count:
            files.close(handle)
            return content
        content += bytes(buffer[:count])


def test_reads_take_the_time_of_their_bytes(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_bytes(bytes(range(250)) * 20)

    content = read_all(tmp_path / "file", clock, bytes_per_s=2000.0)

    assert content == bytes(range(250)) * 20
    assert clock.now == pytest.approx(100.0 + 5000 / 2000.0)


def test_pause_is_short_enough_to_be_ended_between_two(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))

    read_all(tmp_path / "file", clock, bytes_per_s=100.0)

    assert sum(clock.pauses) == pytest.approx(10.0)
    assert max(clock.pauses) <= 1.0


def test_time_in_which_nothing_was_read_is_not_made_up_for(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    files = PacedFileSystem(tmp_path, 1000.0, pause=clock.pause, clock=clock)
    handle = files.open_read(tmp_path / "file")
    files.read(handle, memoryview(bytearray(500)), 0)
    clock.now += 60.0
    before = clock.now

    files.read(handle, memoryview(bytearray(500)), 500)

    files.close(handle)
    assert clock.now == pytest.approx(before + 0.5)


def test_reading_that_was_ended_says_nothing_of_the_bytes(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    files = PacedFileSystem(tmp_path, 1000.0, pause=clock.pause, clock=clock)
    handle = files.open_read(tmp_path / "file")

    files.end()

    with pytest.raises(BlockingIOError) as caught:
        files.read(handle, memoryview(bytearray(500)), 0)
    assert caught.value.errno in TRANSIENT
    files.close(handle)
