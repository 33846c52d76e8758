"""What a new writer is told, message by message, without any writer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.runtime.saving.writer_link import ToldWriter, split
from holdfast.runtime.system.channel import FDS, Channel, Message, pair


class Told:
    """A ``ToldWriter``, and the writers that it tells."""

    def __init__(self) -> None:
        self.told = ToldWriter()
        self._channels: list[Channel] = []
        self.told.memory(memory(), ())

    def copied(self, attempt: int, part: int, **fields: object) -> bool | None:
        """Copy a part; return whether its save is complete, None if it has no use."""
        save = self.told.part(copied(attempt, part, **fields))
        return None if save is None else save.is_complete

    def save(self, attempt: int) -> None:
        self.copied(attempt, 0)
        assert self.copied(attempt, 1)

    def heard(self, *, at_settle: bool) -> list[Message]:
        """Return what a new writer is told at its start, or before a settle."""
        ours, theirs = pair()
        self._channels += [ours, theirs]
        (self.told.repeat_saves if at_settle else self.told.repeat)(ours)
        return theirs.drain()

    def heard_parts(self, *, at_settle: bool) -> list[tuple[int, int, Any]]:
        """Return attempt, part and earlier answer of each part that a new writer is told."""
        return [
            (found["attempt"], found["part"], found.get("answered"))
            for found in self.heard(at_settle=at_settle)
            if found["kind"] == "copied"
        ]

    def close(self) -> None:
        self.told.close()
        for channel in self._channels:
            channel.close()


def memory(launch: int = 1, layout: str = "L") -> Message:
    return {"kind": "memory", "launch": launch, "layout": layout, "bytes": 1000}


def copied(attempt: int, part: int, **fields: object) -> Message:
    message = {
        "kind": "copied",
        "launch": 1,
        "layout": "L",
        "generation": 1,
        "attempt": attempt,
        "part": part,
        "parts": 2,
        "buffer": attempt % 2,
    }
    return {**message, **fields}


def descriptor() -> int:
    return os.memfd_create("test", os.MFD_CLOEXEC)


def is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


@pytest.fixture
def told() -> Iterator[Told]:
    told = Told()
    yield told
    told.close()


def test_new_writer_is_told_memory_and_plan_with_their_descriptors(told: Told) -> None:
    buffers = (descriptor(), descriptor())
    told.told.memory(memory(2), buffers)
    told.told.plan({"kind": "plan", "generation": 1, FDS: [descriptor()]})

    first, second = told.heard(at_settle=False)

    assert (first["kind"], first["launch"], len(first[FDS])) == ("memory", 2, 2)
    assert (second["kind"], len(second[FDS])) == ("plan", 1)
    for fd in (*buffers, *first[FDS], *second[FDS]):
        os.close(fd)


def test_save_is_complete_with_its_last_part(told: Told) -> None:
    assert told.copied(1, 1) is False
    assert told.copied(1, 1) is False
    assert told.copied(1, 0) is True


def test_incomplete_save_is_told_to_the_next_writer_at_once(told: Told) -> None:
    told.save(1)
    told.copied(2, 1)
    told.told.lost()

    assert told.heard_parts(at_settle=False) == [(2, 1, None)]
    assert told.heard_parts(at_settle=True) == [(1, 0, "unsaved"), (1, 1, "unsaved")]


def test_incomplete_save_is_not_told_if_a_later_one_is_complete(told: Told) -> None:
    told.copied(1, 1)
    told.save(2)
    told.told.lost()

    assert told.heard_parts(at_settle=False) == []


def test_complete_saves_are_told_once_and_the_oldest_first(told: Told) -> None:
    told.save(3)
    told.save(4)
    assert not told.told.has_lost_saves
    told.told.lost()
    assert told.told.has_lost_saves

    parts = told.heard_parts(at_settle=True)

    assert [(attempt, part) for attempt, part, _ in parts] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert told.heard_parts(at_settle=True) == []


def test_save_that_a_living_writer_was_told_is_not_repeated(told: Told) -> None:
    told.save(1)
    told.told.lost()
    told.save(2)

    assert {attempt for attempt, _, _ in told.heard_parts(at_settle=True)} == {1}


def test_durable_save_is_told_as_such_and_older_ones_are_not(told: Told) -> None:
    told.save(1)
    told.save(2)
    told.told.saved({"kind": "saved", "launch": 1, "attempt": 2})
    told.told.lost()

    assert told.heard_parts(at_settle=True) == [(2, 0, "saved"), (2, 1, "saved")]


def test_answer_about_another_launch_changes_nothing(told: Told) -> None:
    told.save(1)
    told.told.saved({"kind": "saved", "launch": 9, "attempt": 5})
    told.told.lost()

    assert told.heard_parts(at_settle=True) == [(1, 0, "unsaved"), (1, 1, "unsaved")]


def test_part_of_an_older_save_has_no_use_once_a_later_one_has_begun(told: Told) -> None:
    told.copied(1, 0)
    told.copied(2, 0, generation=2)

    assert told.copied(1, 1) is None
    assert told.copied(3, 1) is None, "the older world"


@pytest.mark.parametrize("other", [{"launch": 2}, {"layout": "other"}])
def test_part_for_other_memory_has_no_use(told: Told, other: dict[str, object]) -> None:
    assert told.copied(1, 0, **other) is None


def test_new_memory_forgets_the_saves_of_the_old_one(told: Told) -> None:
    told.save(1)
    told.told.memory(memory(2), ())
    told.told.lost()

    assert not told.told.has_lost_saves
    assert told.heard_parts(at_settle=False) == []


def test_descriptors_of_what_is_replaced_are_closed_once_they_have_left(told: Told) -> None:
    ours, theirs = pair()
    plan, cursor, late, newer = (descriptor() for _ in range(4))
    told.told.plan({"kind": "plan", "generation": 1, FDS: [plan]})
    told.copied(1, 0, **{FDS: [cursor]})
    while not ours.wants_write:
        ours.post({"text": "x" * 100_000})

    told.told.plan({"kind": "plan", "generation": 1, FDS: [newer]})
    told.copied(3, 0)
    told.copied(1, 1, **{FDS: [late]})
    told.told.close_unused(ours)
    assert all(map(is_open, (plan, cursor, late)))
    while ours.wants_write:
        theirs.drain()
        ours.flush()
    told.told.close_unused(ours)

    assert not any(map(is_open, (plan, cursor, late)))
    assert is_open(newer)
    told.told.close()
    assert not is_open(newer)
    ours.close()
    theirs.close()


def test_message_is_sent_without_the_field_of_its_descriptors() -> None:
    assert split({"kind": "plan", FDS: [7]}) == ({"kind": "plan"}, (7,))
    assert split({"kind": "plan"}) == ({"kind": "plan"}, ())
