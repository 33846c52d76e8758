"""A full pipe takes nothing, and loses nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.tools.followed_run import StderrPipe


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[tuple[StderrPipe, int]]:
    pipe = StderrPipe(tmp_path / "stderr.txt")
    descriptor = os.dup(pipe.write_fd)
    pipe.started()
    yield pipe, descriptor
    os.close(descriptor)
    pipe.close()


def test_text_goes_to_the_file(writer: tuple[StderrPipe, int], tmp_path: Path) -> None:
    pipe, descriptor = writer
    os.write(descriptor, b"one\n")
    pipe.drain()
    os.write(descriptor, b"two\n")
    pipe.drain()

    assert (tmp_path / "stderr.txt").read_bytes() == b"one\ntwo\n"


def test_full_pipe_takes_nothing_until_it_is_released(
    writer: tuple[StderrPipe, int], tmp_path: Path
) -> None:
    pipe, descriptor = writer
    os.write(descriptor, b"before\n")
    pipe.fill()
    pipe.drain()
    os.set_blocking(descriptor, False)
    with pytest.raises(BlockingIOError):
        os.write(descriptor, b"x")
    assert not (tmp_path / "stderr.txt").exists()

    pipe.release()
    pipe.drain()
    os.write(descriptor, b"after\n")
    pipe.drain()

    assert (tmp_path / "stderr.txt").read_bytes() == b"before\nafter\n"


def test_descriptor_of_the_job_still_blocks_after_a_fill(writer: tuple[StderrPipe, int]) -> None:
    pipe, descriptor = writer
    pipe.fill()

    assert os.get_blocking(descriptor)


def test_text_that_a_full_pipe_holds_is_not_lost_at_the_end(tmp_path: Path) -> None:
    pipe = StderrPipe(tmp_path / "stderr.txt")
    os.write(pipe.write_fd, b"before\n")
    pipe.fill()
    pipe.started()

    pipe.close()

    assert (tmp_path / "stderr.txt").read_bytes() == b"before\n"


def test_text_of_the_next_job_is_added_to_that_of_the_last_one(tmp_path: Path) -> None:
    for text in (b"first\n", b"second\n"):
        pipe = StderrPipe(tmp_path / "stderr.txt")
        os.write(pipe.write_fd, text)
        pipe.started()
        pipe.close()

    assert (tmp_path / "stderr.txt").read_bytes() == b"first\nsecond\n"
