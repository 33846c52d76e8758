"""The memory for saves: how many buffers there are, who maps them, and when they are free."""

from __future__ import annotations

import errno
import fcntl
import itertools
import mmap
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_saves import STEP, Workers, cursor_of, plan_of, state_of

from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.runtime.saving import save_memory
from holdfast.runtime.saving.save_memory import BUFFERS, HostBuffers, SaveMemory
from holdfast.runtime.saving.save_messages import AskMemory
from holdfast.runtime.system.own_process import Resource, Usage, sealed_memory

_F_GET_SEALS = 1034
_MIB = 2**20
SIZE = 3 * _MIB
NBYTES = 2 * _MIB
PER_BUFFER = 2
"""Descriptors: that of the memory, and that of the map of its header."""
Make = Callable[..., SaveMemory]
BUFFER_BYTES = 40 * mmap.PAGESIZE


def usage(free: int, place: str = "the host") -> Usage:
    return Usage(Resource.MEMORY, place, 100 * _MIB, 100 * _MIB + free)


def question(layout: str = "L", most: int | None = None) -> AskMemory:
    return AskMemory(layout, SIZE, NBYTES, most)


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

    assert memory.buffers(1, question()) == (before, False)
    after, is_new = memory.buffers(launch, question(layout))

    assert is_new
    assert not set(before.fds) & set(after.fds), "the old ones may be on their way to a worker"


def test_only_the_two_newest_pairs_are_kept(make: Make) -> None:
    memory = make()
    before = open_descriptors()

    for launch in range(1, 20):
        memory.buffers(launch, question())

    assert open_descriptors() == before + 2 * BUFFERS * PER_BUFFER
    memory.close()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("free", "most", "count"),
    [
        *((2 * NBYTES, None, 2), (2 * NBYTES - 1, None, 1), (NBYTES, None, 1)),
        *((NBYTES - 1, None, 0), (0, None, 0)),
        *((100 * NBYTES, 2 * NBYTES, 2), (100 * NBYTES, 2 * NBYTES - 1, 1)),
        *((100 * NBYTES, NBYTES - 1, 0), (NBYTES, 100 * NBYTES, 1), (NBYTES - 1, NBYTES, 0)),
    ],
)
def test_there_are_as_many_buffers_as_the_tightest_limit_and_the_user_have_room_for(
    make: Make, free: int, most: int | None, count: int
) -> None:
    memory = make(usage(1000 * NBYTES), usage(free, "the control group /job"))

    buffers, _ = memory.buffers(1, question(most=most))

    assert len(buffers.fds) == count


def test_lack_is_told_with_the_values_and_what_follows(make: Make) -> None:
    one, _ = make(usage(3 * _MIB, "the control group /job")).buffers(1, question())
    none, _ = make(usage(_MIB)).buffers(1, question())
    two, _ = make(usage(4 * _MIB)).buffers(1, question())

    assert two.lack == ""
    assert one.lack == (
        "two snapshots of 2.0 MiB do not fit: the control group /job has 3.0 MiB left; "
        "one save waits for the end of the one before"
    )
    assert none.lack == (
        "two snapshots of 2.0 MiB do not fit: the host has 1.0 MiB left; "
        "training waits while the first worker writes a checkpoint from its own memory"
    )


@pytest.mark.parametrize("made_before", [0, 1])
@pytest.mark.parametrize("call", [(os, "memfd_create"), (mmap, "mmap")])
def test_memory_that_the_system_refuses_is_done_without(
    make: Make, monkeypatch: pytest.MonkeyPatch, made_before: int, call: tuple[Any, str]
) -> None:
    """An agent that ended of it would take all workers along."""
    before = open_descriptors()
    real, calls = getattr(*call), iter(range(10))

    def refuse(*arguments: Any, **named: Any) -> Any:
        if next(calls) < made_before:
            return real(*arguments, **named)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    memory = make()
    with monkeypatch.context() as patch:
        patch.setattr(*call, refuse)
        buffers, is_new = memory.buffers(1, question())

    assert is_new
    assert len(buffers.fds) == made_before
    assert "[Errno 24] Too many open files" in buffers.lack
    assert open_descriptors() == before + made_before * PER_BUFFER


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("early", [1, 2, 3])
@pytest.mark.parametrize("share", [0, 1])
def test_save_is_told_once_when_all_parts_are_there_and_the_cursor_is_known(
    tmp_path: Path, order: tuple[int, ...], early: int, share: int
) -> None:
    """When the word of the part number ``early`` comes, those behind it are there already."""
    workers = Workers(plan_of(tmp_path), share=share, hosts=2)
    ticket = workers.ticket(STEP, 1)
    told = [workers.agent.take_part(workers.copy(ticket, part, 3)) for part in order[: early - 1]]
    behind = [workers.copy(ticket, part, 3) for part in order[early - 1 :]]
    told += map(workers.agent.take_part, [*behind, *behind])

    (held,) = filter(None, told)
    place = early - 1 if share else max(early - 1, order.index(0))
    assert told.index(held) == place
    assert (held.ticket, held.share, held.is_in_memory) == (ticket, share, True)
    assert held.digests == {f"{STEP:032x}"}
    assert held.cursor == (None if share else cursor_of(STEP))
    workers.close()


def test_parts_of_several_states_are_told_and_those_of_two_saves_are_none(tmp_path: Path) -> None:
    workers = Workers(plan_of(tmp_path))
    first, second = workers.ticket(10, 1), workers.ticket(30, 3)
    workers.agent.take_part(workers.copy(first, 0))
    assert workers.agent.take_part(workers.copy(second, 1, digest="bb" * 16)) is None

    held = workers.agent.take_part(workers.copy(second, 0, digest="cc" * 16))

    assert held is not None
    assert held.digests == {"bb" * 16, "cc" * 16}
    workers.close()


@pytest.fixture
def fds() -> list[int]:
    return [sealed_memory("holdfast-test", BUFFER_BYTES) for _ in range(2)]


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


def test_descriptors_are_closed_when_one_cannot_be_mapped(fds: list[int]) -> None:
    empty = os.memfd_create("holdfast-test")

    with pytest.raises(ValueError, match="empty"):
        HostBuffers.of_agent([*fds, empty])

    assert not any(is_open(fd) for fd in [*fds, empty])


def _old_kernel(patch: pytest.MonkeyPatch) -> None:
    """Let the kernel map no pages ahead: they are touched one by one."""
    patch.setattr(save_memory, "_POPULATE_WRITE", 12345)


def _in_small_pieces(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(save_memory, "_AT_ONCE_BYTES", 3 * mmap.PAGESIZE)


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
        start = dice.randrange(BUFFER_BYTES - 1)
        spans.append((start, dice.randrange(1, min(BUFFER_BYTES - start, 9 * mmap.PAGESIZE) + 1)))
    pages = {
        page
        for start, length in spans
        for page in range(start // mmap.PAGESIZE, (start + length - 1) // mmap.PAGESIZE + 1)
    }

    buffers.touch(7, spans)

    assert [blocks_of(fd) for fd in kept] == [mmap.PAGESIZE, len(pages) * mmap.PAGESIZE]
    assert bytes(buffers[1]) == b"abc" + bytes(BUFFER_BYTES - 3)
    buffers.close()
    for fd in kept:
        os.close(fd)


@pytest.mark.parametrize("how", [lambda _: None, _in_small_pieces])
def test_memory_of_all_saves_but_one_is_returned(
    fds: list[int],
    monkeypatch: pytest.MonkeyPatch,
    how: Callable[[pytest.MonkeyPatch], None],
) -> None:
    how(monkeypatch)
    kept = [os.dup(fd) for fd in fds]
    buffers = HostBuffers.of_agent(fds)
    buffers[0][:] = b"a" * BUFFER_BYTES
    buffers[1][:] = b"b" * BUFFER_BYTES

    buffers.keep_only(4)

    assert blocks_of(kept[1]) == 0
    assert bytes(buffers[0]) == b"a" * BUFFER_BYTES
    assert bytes(buffers[1]) == bytes(BUFFER_BYTES)
    buffers.close()
    for fd in kept:
        os.close(fd)


def test_memory_that_the_system_lacks_is_an_error_and_not_a_death() -> None:
    buffers = HostBuffers([_NoMemory(-1, BUFFER_BYTES)])

    with pytest.raises(OSError, match="no memory"):
        buffers.touch(1, [(0, 1)])
    buffers.close()


def test_memory_that_the_system_does_not_take_back_stays() -> None:
    buffers = HostBuffers([_NoMemory(-1, BUFFER_BYTES), mmap.mmap(-1, BUFFER_BYTES)])
    buffers[0][:3] = b"abc"

    buffers.keep_only(1)

    assert bytes(buffers[0][:3]) == b"abc"
    buffers.close()


class _NoMemory(mmap.mmap):
    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        raise OSError(errno.ENOMEM, "no memory")


def test_name_of_the_memory_is_that_of_all_that_its_map_follows_from(tmp_path: Path) -> None:
    other_state = ShardLayout(specs_of({**state_of(0), "d": state_of(0)["c"]}), 2)
    plan = plan_of(tmp_path / "run")

    same = [
        plan_of(tmp_path),
        plan_of(tmp_path / "run", fields={"stage": 1}),
        plan_of(tmp_path / "run", unsound={1}),
    ]
    others = [
        plan_of(tmp_path / "run", shards=3),
        plan_of(tmp_path / "run", layout=other_state),
        plan_of(tmp_path / "run", run_id="other"),
    ]

    places = [(0, 2), (1, 2), (0, 3)]
    assert {found.layout_id(0, 2) for found in same} == {plan.layout_id(0, 2)}
    names = {found.layout_id(*place) for found in [plan, *others] for place in places}
    assert len(names) == 4 * len(places)
