"""The memory of a host's saves: the same for all workers, and never more than there is."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.runtime.watch.usage import Resource, Usage
from holdfast.runtime.writing.save_memory import SaveMemory

MIB = 2**20


class Host:
    """Memory whose limits are in the test's hands."""

    def __init__(self) -> None:
        self.free_mib: dict[str, int] = {"the host": 10_000}
        self.memory = SaveMemory(self._limits)

    def _limits(self) -> list[Usage]:
        return [
            Usage(Resource.MEMORY, place, 5 * MIB, (5 + free) * MIB)
            for place, free in self.free_mib.items()
        ]


@pytest.fixture
def host() -> Iterator[Host]:
    host = Host()
    yield host
    host.memory.close()


def question(layout: str = "l", mib: int = 100) -> dict[str, object]:
    return {"layout": layout, "size": 2 * mib * MIB, "bytes": mib * MIB}


def test_first_worker_makes_the_buffers_and_the_others_get_the_same(host: Host) -> None:
    first, is_new = host.memory.buffers(7, question())
    again, is_new_again = host.memory.buffers(7, question())

    assert (is_new, is_new_again) == (True, False)
    assert first is again
    assert [os.fstat(fd).st_size for fd in first.fds] == [200 * MIB] * 2
    assert first.lack == ""


@pytest.mark.parametrize(
    ("launch", "layout"), [(7, "other"), (8, "l")], ids=["another layout", "another launch"]
)
def test_other_saves_get_other_buffers(host: Host, launch: int, layout: str) -> None:
    first, _ = host.memory.buffers(7, question("l"))

    second, is_new = host.memory.buffers(launch, question(layout))

    assert is_new
    inodes = [os.fstat(fd).st_ino for fd in (*first.fds, *second.fds)]
    assert len(set(inodes)) == 4, "descriptors of the last ones may still be on their way"


@pytest.mark.parametrize(
    ("free_mib", "count", "words"),
    [
        (200, 2, ""),
        (199, 1, "one save waits for the end of the one before"),
        (100, 1, "one save waits for the end of the one before"),
        (99, 0, "training waits while the first worker writes"),
    ],
)
def test_there_are_as_many_buffers_as_fit(
    host: Host, free_mib: int, count: int, words: str
) -> None:
    host.free_mib["the cgroup /job"] = free_mib

    found, _ = host.memory.buffers(7, question(mib=100))

    assert len(found.fds) == count
    assert words in found.lack
    values = f"two snapshots of 100 MiB do not fit: the cgroup /job has {free_mib} MiB left"
    assert found.lack.startswith(values if words else "")


def test_host_that_tells_no_limit_has_two(host: Host) -> None:
    host.free_mib.clear()

    assert len(host.memory.buffers(7, question())[0].fds) == 2


def test_descriptors_do_not_pile_up(host: Host) -> None:
    host.memory.buffers(1, question())
    host.memory.buffers(2, question())
    before = len(os.listdir("/proc/self/fd"))

    for launch in range(3, 30):
        host.memory.buffers(launch, question())

    assert len(os.listdir("/proc/self/fd")) == before
