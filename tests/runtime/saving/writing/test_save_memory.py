"""The memory for saves: how many buffers there are, who gets them, and for how long."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator

import pytest

from holdfast.runtime.saving.save_memory import BUFFERS, SaveMemory
from holdfast.runtime.system.usage import Resource, Usage

_F_GET_SEALS = 1034
_MIB = 2**20
SIZE = 3 * _MIB
NBYTES = 2 * _MIB
Make = Callable[..., SaveMemory]


def usage(free: int, place: str = "the host") -> Usage:
    return Usage(Resource.MEMORY, place, 100 * _MIB, 100 * _MIB + free)


def question(layout: str = "L") -> dict[str, object]:
    return {"kind": "memory", "layout": layout, "size": SIZE, "bytes": NBYTES}


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[SaveMemory] = []

    def build(*limits: Usage) -> SaveMemory:
        made.append(SaveMemory(lambda: limits))
        return made[-1]

    yield build
    for memory in made:
        memory.close()


def test_all_workers_of_a_launch_and_layout_have_the_same_buffers(make: Make) -> None:
    memory = make()

    found = [memory.buffers(1, question()) for _ in range(3)]

    assert [is_new for _, is_new in found] == [True, False, False]
    assert len({buffers.fds for buffers, _ in found}) == 1


def test_buffers_have_the_size_that_was_asked_for_and_keep_it(make: Make) -> None:
    buffers, _ = make().buffers(1, question())

    assert len(buffers.fds) == BUFFERS
    for fd in buffers.fds:
        assert os.fstat(fd).st_size == SIZE
        assert os.fstat(fd).st_blocks == 0, "memory that nobody writes takes no space"
        assert fcntl.fcntl(fd, _F_GET_SEALS) == 1 | 2 | 4
        with pytest.raises(PermissionError):
            os.ftruncate(fd, 1)


@pytest.mark.parametrize(("launch", "layout"), [(2, "L"), (1, "other")])
def test_another_launch_or_layout_has_buffers_of_its_own(
    make: Make, launch: int, layout: str
) -> None:
    memory = make()
    before, _ = memory.buffers(1, question())

    after, is_new = memory.buffers(launch, question(layout))

    assert is_new
    assert not set(before.fds) & set(after.fds), "the old ones may be on their way to a worker"


def test_only_the_two_newest_pairs_are_kept(make: Make) -> None:
    memory = make()
    before = open_descriptors()

    for launch in range(1, 20):
        memory.buffers(launch, question())

    assert open_descriptors() == before + 2 * BUFFERS
    memory.close()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("free", "count"),
    [(2 * NBYTES, 2), (2 * NBYTES - 1, 1), (NBYTES, 1), (NBYTES - 1, 0), (0, 0)],
)
def test_there_are_as_many_buffers_as_the_tightest_limit_has_room_for(
    make: Make, free: int, count: int
) -> None:
    memory = make(usage(100 * NBYTES), usage(free, "the control group /job"))

    buffers, _ = memory.buffers(1, question())

    assert len(buffers.fds) == count


def test_lack_is_told_with_the_values_and_what_follows(make: Make) -> None:
    one, _ = make(usage(3 * _MIB, "the control group /job")).buffers(1, question())
    none, _ = make(usage(_MIB)).buffers(1, question())
    two, _ = make(usage(4 * _MIB)).buffers(1, question())

    assert two.lack == ""
    assert one.lack == (
        "two snapshots of 2 MiB do not fit: the control group /job has 3 MiB left; "
        "one save waits for the end of the one before"
    )
    assert none.lack == (
        "two snapshots of 2 MiB do not fit: the host has 1 MiB left; "
        "training waits while the first worker writes a checkpoint from its own memory"
    )


def test_limits_are_read_once_a_launch_and_layout() -> None:
    looks: list[None] = []

    def limits() -> list[Usage]:
        looks.append(None)
        return []

    memory = SaveMemory(limits)
    for _ in range(3):
        memory.buffers(1, question())
    memory.close()

    assert len(looks) == 1


@pytest.mark.parametrize("made_before", [0, 1])
def test_memory_that_the_system_refuses_is_done_without(
    make: Make, monkeypatch: pytest.MonkeyPatch, made_before: int
) -> None:
    """An agent that ended of it would take all workers along."""
    before = open_descriptors()
    real, calls = os.memfd_create, iter(range(10))

    def refuse(name: str, flags: int) -> int:
        if next(calls) < made_before:
            return real(name, flags)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    memory = make()
    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", refuse)
        buffers, is_new = memory.buffers(1, question())

    assert is_new
    assert len(buffers.fds) == made_before
    assert "[Errno 24] Too many open files" in buffers.lack
    assert open_descriptors() == before + made_before


@pytest.mark.parametrize(
    ("most", "free", "count"),
    [
        (2 * NBYTES, 100 * NBYTES, 2),
        (2 * NBYTES - 1, 100 * NBYTES, 1),
        (NBYTES - 1, 100 * NBYTES, 0),
        (100 * NBYTES, NBYTES, 1),
        (NBYTES, NBYTES - 1, 0),
    ],
)
def test_user_may_allow_less_than_the_host_has(
    make: Make, most: int, free: int, count: int
) -> None:
    buffers, _ = make(usage(free)).buffers(1, question() | {"most": most})

    assert len(buffers.fds) == count


def test_what_the_user_allows_is_told_if_it_is_too_little(make: Make) -> None:
    found, _ = make(usage(9 * _MIB)).buffers(1, question() | {"most": 3 * _MIB})

    assert found.lack == (
        "two snapshots of 2 MiB do not fit: --snapshot-memory allows 3 MiB; "
        "one save waits for the end of the one before"
    )
