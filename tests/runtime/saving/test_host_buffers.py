"""A worker maps the buffers of its agent, and others see what it copies into them."""

from __future__ import annotations

import errno
import mmap
import os
import random
from collections.abc import Callable

import pytest

from holdfast.runtime.saving import own_way
from holdfast.runtime.saving.own_way import HostBuffers
from holdfast.runtime.system.own_process import sealed_memory

SIZE = 40 * mmap.PAGESIZE


@pytest.fixture
def fds() -> list[int]:
    return [sealed_memory("holdfast-test", SIZE) for _ in range(2)]


def blocks_of(fd: int) -> int:
    """Return the bytes that the memory takes."""
    return os.fstat(fd).st_blocks * 512


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError as error:
        return error.errno != errno.EBADF
    return True


@pytest.mark.parametrize("count", [0, 1, 2])
def test_all_who_have_mapped_a_buffer_see_what_one_of_them_copies(
    fds: list[int], count: int
) -> None:
    given = fds[:count]
    one, other = (HostBuffers.of_agent(map(os.dup, given)) for _ in range(2))

    assert len(one) == count
    for number in range(count):
        one[number][7:9] = bytes([number, 99])
        assert bytes(other[number][6:10]) == bytes([0, number, 99, 0])
        assert os.pread(fds[number], 2, 7) == bytes([number, 99])
    one.close()
    other.close()
    for fd in fds:
        os.close(fd)


def test_descriptors_are_closed_and_the_memory_stays(fds: list[int]) -> None:
    kept = os.dup(fds[0])
    buffers = HostBuffers.of_agent(fds)
    assert not any(is_open(fd) for fd in fds)

    buffers[0][:4] = b"left"
    buffers.close()

    assert os.pread(kept, 4, 0) == b"left"
    os.close(kept)


def test_descriptors_are_closed_when_one_cannot_be_mapped(fds: list[int]) -> None:
    empty = os.memfd_create("holdfast-test")

    with pytest.raises(ValueError, match="empty"):
        HostBuffers.of_agent([*fds, empty])

    assert not any(is_open(fd) for fd in [*fds, empty])


def _old_kernel(patch: pytest.MonkeyPatch) -> None:
    """Let the kernel map no pages ahead: they are touched one by one."""
    patch.setattr(own_way, "_POPULATE_WRITE", 12345)


def _in_small_pieces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(own_way, "_AT_ONCE_BYTES", 3 * mmap.PAGESIZE)


@pytest.mark.parametrize("how", [lambda _: None, _old_kernel, _in_small_pieces])
@pytest.mark.parametrize("seed", range(4))
def test_touch_takes_the_pages_of_its_places_and_changes_no_byte(
    fds: list[int],
    monkeypatch: pytest.MonkeyPatch,
    how: Callable[[pytest.MonkeyPatch], None],
    seed: int,
) -> None:
    how(monkeypatch)
    kept = [os.dup(fd) for fd in fds]
    buffers = HostBuffers.of_agent(fds)
    buffers[0][:3] = buffers[1][:3] = b"abc"
    dice = random.Random(seed)
    spans = [(0, 3)]
    for _ in range(dice.randrange(1, 5)):
        start = dice.randrange(SIZE - 1)
        spans.append((start, dice.randrange(1, min(SIZE - start, 9 * mmap.PAGESIZE) + 1)))
    pages = {
        page
        for start, length in spans
        for page in range(start // mmap.PAGESIZE, (start + length - 1) // mmap.PAGESIZE + 1)
    }

    buffers.touch(spans)

    assert [blocks_of(fd) for fd in kept] == [len(pages) * mmap.PAGESIZE] * 2
    assert bytes(buffers[1]) == b"abc" + bytes(SIZE - 3)
    buffers.close()
    for fd in kept:
        os.close(fd)


def test_memory_that_the_system_lacks_is_an_error_and_not_a_death() -> None:
    buffers = HostBuffers([_NoMemory(-1, SIZE)])

    with pytest.raises(OSError, match="no memory"):
        buffers.touch([(0, 1)])
    buffers.close()


class _NoMemory(mmap.mmap):
    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        raise OSError(errno.ENOMEM, "no memory")


def test_own_buffers_are_apart_and_empty() -> None:
    buffers = HostBuffers.own(2, SIZE)

    buffers[1][5] = 7

    assert (len(buffers), bytes(buffers[0])) == (2, bytes(SIZE))
    buffers.close()
