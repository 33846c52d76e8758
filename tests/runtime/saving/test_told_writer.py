"""What the agent tells a writer, how long it waits, and what follows if one is lost; no process."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_writer import PARTS, AgentOfFakes
from host_saves import saved_steps
from host_simulation import HostSimulation
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.saving.writer_link import (
    ANSWERED_WITHIN_S,
    KILLED_SETTLES_WITHIN_S,
    SLOWEST_BYTES_PER_S,
    FailedSaves,
    WriterReplay,
    _split,
)
from holdfast.runtime.system.channel import FDS, Channel, Message, pair

FILE_BYTES = 500_000_000
FILE_S = FILE_BYTES / SLOWEST_BYTES_PER_S
FULL = "cannot allocate /run/.tmp-000000000{0}-g1-a{1}/shard: No space left on device (ENOSPC)"
EVENTS = st.lists(st.sampled_from(["serve", "die", "hang", "refuse", "allow"]), max_size=3)
SAVES = st.lists(
    st.tuples(st.permutations(range(PARTS)), st.integers(1, PARTS), EVENTS, EVENTS),
    min_size=1,
    max_size=6,
)


class StrikeResult:
    """A ``WriterReplay``, and the writers that it tells."""

    def __init__(self) -> None:
        self.told = WriterReplay()
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
def told() -> Iterator[StrikeResult]:
    told = StrikeResult()
    yield told
    told.close()


def test_new_writer_is_told_memory_and_plan_with_their_descriptors(told: StrikeResult) -> None:
    buffers = (descriptor(), descriptor())
    told.told.memory(memory(2), buffers)
    told.told.plan({"kind": "plan", "generation": 1, FDS: [descriptor()]})

    first, second = told.heard(at_settle=False)

    assert (first["kind"], first["launch"], len(first[FDS])) == ("memory", 2, 2)
    assert (second["kind"], len(second[FDS])) == ("plan", 1)
    for fd in (*buffers, *first[FDS], *second[FDS]):
        os.close(fd)


def test_host_that_saves_no_more_says_so_to_the_next_writer_until_another_plan_comes(
    told: StrikeResult,
) -> None:
    assert told.told.end_maintenance() is None, "there is nothing to look after"
    told.told.plan({"kind": "plan", "generation": 1, FDS: [descriptor()]})

    ended = told.told.end_maintenance()

    assert ended is not None
    assert told.told.end_maintenance() is None
    _, plan = told.heard(at_settle=False)
    assert (plan["has_maintenance"], len(plan[FDS])) == (False, 1)
    told.told.plan({"kind": "plan", "generation": 2, FDS: [descriptor()]})
    _, later = told.heard(at_settle=False)
    assert "has_maintenance" not in later
    for fd in (*plan[FDS], *later[FDS]):
        os.close(fd)


def test_save_is_complete_with_its_last_part(told: StrikeResult) -> None:
    assert told.copied(1, 1) is False
    assert told.copied(1, 1) is False
    assert told.copied(1, 0) is True


def test_incomplete_save_is_told_to_the_next_writer_at_once(told: StrikeResult) -> None:
    told.save(1)
    told.copied(2, 1)
    told.told.lost()

    assert told.heard_parts(at_settle=False) == [(2, 1, None)]
    assert told.heard_parts(at_settle=True) == [(1, 0, "unsaved"), (1, 1, "unsaved")]


def test_incomplete_save_is_not_told_if_a_later_one_is_complete(told: StrikeResult) -> None:
    told.copied(1, 1)
    told.save(2)
    told.told.lost()

    assert told.heard_parts(at_settle=False) == []


def test_complete_saves_are_told_once_and_the_oldest_first(told: StrikeResult) -> None:
    told.save(3)
    told.save(4)
    assert not told.told.has_lost_saves
    told.told.lost()
    assert told.told.has_lost_saves

    parts = told.heard_parts(at_settle=True)

    assert [(attempt, part) for attempt, part, _ in parts] == [(3, 0), (3, 1), (4, 0), (4, 1)]
    assert told.heard_parts(at_settle=True) == []


def test_save_that_a_living_writer_was_told_is_not_repeated(told: StrikeResult) -> None:
    told.save(1)
    told.told.lost()
    told.save(2)

    assert {attempt for attempt, _, _ in told.heard_parts(at_settle=True)} == {1}


def test_durable_save_is_told_as_such_and_older_ones_are_not(told: StrikeResult) -> None:
    told.save(1)
    told.save(2)
    told.told.saved({"kind": "saved", "launch": 1, "attempt": 2})
    told.told.lost()

    assert told.heard_parts(at_settle=True) == [(2, 0, "saved"), (2, 1, "saved")]


def test_answer_about_another_launch_changes_nothing(told: StrikeResult) -> None:
    told.save(1)
    told.told.saved({"kind": "saved", "launch": 9, "attempt": 5})
    told.told.lost()

    assert told.heard_parts(at_settle=True) == [(1, 0, "unsaved"), (1, 1, "unsaved")]


def test_part_of_an_older_save_has_no_use_once_a_later_one_has_begun(told: StrikeResult) -> None:
    told.copied(1, 0)
    told.copied(2, 0, generation=2)

    assert told.copied(1, 1) is None
    assert told.copied(3, 1) is None, "the older world"


@pytest.mark.parametrize("other", [{"launch": 2}, {"layout": "other"}])
def test_part_for_other_memory_has_no_use(told: StrikeResult, other: dict[str, object]) -> None:
    assert told.copied(1, 0, **other) is None


def test_new_memory_forgets_the_saves_of_the_old_one(told: StrikeResult) -> None:
    told.save(1)
    told.told.memory(memory(2), ())
    told.told.lost()

    assert not told.told.has_lost_saves
    assert told.heard_parts(at_settle=False) == []


def test_descriptors_of_what_is_replaced_are_closed_once_they_have_left(told: StrikeResult) -> None:
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
    assert _split({"kind": "plan", FDS: [7]}) == ({"kind": "plan"}, (7,))
    assert _split({"kind": "plan"}) == ({"kind": "plan"}, ())


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostSimulation]:
    """Return a host of two workers and two buffers."""
    with contextlib.closing(HostSimulation(tmp_path, monkeypatch, seed=0)) as host:
        host.launch(workers=2, buffers=2)
        yield host


def test_save_goes_on_with_the_next_writer_from_the_parts_that_were_told(
    host: HostSimulation, tmp_path: Path
) -> None:
    step = host.begin()
    host.deliver_from(0)
    host.link.replace("killed")

    host.deliver_from(1)

    assert saved_steps(tmp_path) == (step,)
    assert set(host.answers.values()) == {1}


def test_complete_save_at_which_a_writer_died_is_committed_though_a_later_one_has_begun(
    host: HostSimulation, tmp_path: Path
) -> None:
    lost = host.begin()
    host.deliver_from(0)
    host.processes[-1].files.dies_in = 5
    host.deliver_from(1)
    assert saved_steps(tmp_path) == ()
    host.begin()
    host.deliver_from(0)

    assert host.settle() == lost

    assert saved_steps(tmp_path) == (lost,)


def test_incomplete_save_of_a_lost_writer_is_answered_by_the_plan_of_the_next_world(
    host: HostSimulation,
) -> None:
    """With one buffer the survivors wait for this answer."""
    host.begin()
    host.deliver_from(0)
    host.link.replace("killed")

    host.lose_a_worker()
    host.deliver_from(0)

    assert set(host.answers.values()) == {1}


def test_late_part_of_a_save_that_was_answered_leaves_nothing_to_wait_for(
    host: HostSimulation,
) -> None:
    """Else the agent would give up a writer that has nothing to do."""
    host.begin()
    host.deliver_from(0)
    host.lose_a_worker(is_heard=True)
    host.deliver_from(0)
    assert set(host.answers.values()) == {1}

    host.deliver_from(1)
    host.link.poll(now=1e6)

    assert host.link.pid is not None
    assert len(host.processes) == 1


class Agent(AgentOfFakes):
    """An agent to whom things happen."""

    def happen(self, event: str) -> None:
        match event:
            case "serve" if self.writer is not None:
                self.writer.serve()
            case "die" if self.writer is not None:
                self.writer.kill()
            case "hang":
                self.link.poll(1e6)
            case "refuse" | "allow":
                self.is_refused = event == "refuse"
        self.hear()

    def settle(self) -> int | None:
        found: list[int | None] = []
        self.link.settle(lambda answer: found.append(answer["step"]))
        self.happen("serve")
        (step,) = found
        return step


@given(SAVES)
def test_complete_save_is_answered_once_and_the_newest_is_settled(
    saves: list[tuple[list[int], int, list[str], list[str]]],
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        agent = Agent(patch)
        complete = []
        for attempt, (order, count, between, after) in enumerate(saves, 1):
            for place, part in enumerate(order[:count]):
                for event in between if place else ():
                    agent.happen(event)
                agent.copied(attempt, part)
            if count == PARTS:
                complete.append(attempt)
            for event in after:
                agent.happen(event)
        agent.happen("allow")
        agent.happen("serve")

        answered = Counter(answer["attempt"] for answer in agent.answers)
        settled = agent.settle()
        before_settle = len(answered)

        assert answered == Counter(complete)
        assert len(Counter(answer["attempt"] for answer in agent.answers)) == before_settle
        if complete and complete[-1] >= len(saves) - 1:  # no later one has taken its memory
            assert settled == 10 * complete[-1]
        agent.close()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentOfFakes]:
    agent = AgentOfFakes(monkeypatch)
    agent.link.start()
    yield agent
    agent.close()


def settle(agent: AgentOfFakes) -> list[Message]:
    """Ask for a settle, and let the writer begin with it."""
    found: list[Message] = []
    agent.link.settle(found.append)
    return found


def wait(agent: AgentOfFakes, seconds: float) -> None:
    agent.now += seconds
    agent.link.poll(agent.now)


def test_writer_that_has_begun_no_file_is_waited_for_a_minute(
    agent: AgentOfFakes,
) -> None:
    """However large the state is: a relaunch may wait behind it."""
    found = settle(agent)

    wait(agent, ANSWERED_WITHIN_S - 1)
    assert found == []
    wait(agent, 2)

    assert found[0]["step"] is None


def test_file_that_is_being_written_has_the_time_that_its_bytes_take(
    agent: AgentOfFakes,
) -> None:
    """A settle that waits behind a save has as long as that."""
    found = settle(agent)
    agent.progress(FILE_BYTES)

    wait(agent, ANSWERED_WITHIN_S + FILE_S - 1)
    assert found == []
    wait(agent, 2)

    assert found[0]["step"] is None


def test_wait_begins_anew_with_each_file_and_with_each_read(agent: AgentOfFakes) -> None:
    found = settle(agent)
    for nbytes in (0, 0, FILE_BYTES, 0, FILE_BYTES):
        agent.progress(nbytes)
        wait(agent, ANSWERED_WITHIN_S - 1)
    assert found == []

    agent.progress(0)
    wait(agent, ANSWERED_WITHIN_S + 1)

    assert found[0]["step"] is None, "nothing is being written any more"


def test_new_writer_is_not_waited_for_as_long_as_the_file_of_the_one_before(
    agent: AgentOfFakes,
) -> None:
    agent.progress(FILE_BYTES)
    agent.link.replace("killed")
    agent.link.start()
    found = settle(agent)

    wait(agent, ANSWERED_WITHIN_S + 1)

    assert found[0]["step"] is None


def test_save_is_given_up_when_its_file_takes_too_long(agent: AgentOfFakes) -> None:
    agent.copied(1, 0)
    agent.copied(1, 1)
    agent.progress(FILE_BYTES)

    wait(agent, ANSWERED_WITHIN_S + FILE_S - 1)
    assert agent.answers == []
    wait(agent, 2)

    assert [answer["kind"] for answer in agent.answers] == ["unsaved"]


def test_settle_for_whom_does_not_want_to_wait_has_seconds(agent: AgentOfFakes) -> None:
    found: list[Message] = []
    agent.link.settle(found.append, is_urgent=True)
    agent.progress(FILE_BYTES)

    wait(agent, KILLED_SETTLES_WITHIN_S - 1)
    assert found == []
    wait(agent, 2)

    assert found[0]["step"] is None


def test_reason_that_comes_again_is_told_in_full_once() -> None:
    failed = FailedSaves()

    told = [failed.sentence(10 * n, FULL.format(10 * n, n)) for n in (1, 2, 3)]

    assert told == [
        f"the checkpoint of step 10 failed: {FULL.format(10, 1)}",
        "the checkpoint of step 20 failed for the same reason",
        "the checkpoint of step 30 failed for the same reason",
    ]


def test_another_reason_is_told_in_full() -> None:
    failed = FailedSaves()
    failed.sentence(10, FULL.format(10, 1))

    assert (
        failed.sentence(20, "it is read-only")
        == "the checkpoint of step 20 failed: it is read-only"
    )
    told = failed.sentence(30, FULL.format(30, 3))
    assert told.endswith("(ENOSPC)")


def test_reason_is_told_in_full_again_after_a_save_that_succeeded() -> None:
    failed = FailedSaves()
    failed.sentence(10, "it is full")

    told = failed.succeeded(15)
    assert told == "checkpoints are saved again, from step 15 on"
    assert failed.succeeded(16) is None
    told = failed.sentence(20, "it is full")
    assert told == "the checkpoint of step 20 failed: it is full"
