"""What the agent tells a writer, how long it waits, and what follows if one is lost; no process."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_writer import PARTS, AgentOfFakes
from host_saves import saved_steps
from host_simulation import HostSimulation
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.saving.save_messages import Settle
from holdfast.runtime.saving.writer_link import (
    ANSWERED_WITHIN_S,
    KILLED_SETTLES_WITHIN_S,
    SLOWEST_BYTES_PER_S,
    FailedSaves,
)

FILE_BYTES = 500_000_000
FILE_S = FILE_BYTES / SLOWEST_BYTES_PER_S
EVENTS = st.lists(st.sampled_from(["serve", "die", "hang", "refuse", "allow"]), max_size=3)
SAVES = st.lists(
    st.tuples(st.permutations(range(PARTS)), st.integers(1, PARTS), EVENTS, EVENTS),
    min_size=1,
    max_size=6,
)


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
        self.link.settle(Settle(is_urgent=False))
        self.happen("serve")
        (step,) = self.settled
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

        answers = [(answer.ticket.attempt, answer.is_expected) for answer in agent.answers]
        settled = agent.settle()

        given_up = set(range(1, len(saves))) - {*complete}  # those that others have followed
        assert sorted(answers) == sorted(
            [(one, False) for one in complete] + [(one, True) for one in given_up]
        )
        assert len(agent.answers) == len(answers)
        if complete and complete[-1] >= len(saves) - 1:  # no later one has taken its memory
            assert settled == 10 * complete[-1]
        agent.close()


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentOfFakes]:
    agent = AgentOfFakes(monkeypatch)
    agent.link.start()
    yield agent
    agent.close()


PARTS_TOLD = {
    "a part that is told twice counts once": ("1/0 1/0 1/1", "saved:1"),
    "parts of two attempts make no save": ("1/0 2/1 settle", "given-up:1"),
    # A worker died, and the survivors save again in a world of their own.
    "a later save ends an incomplete one": ("1/0 2/0g8 2/1g8", "given-up:1 saved:2"),
    "a late part of an older save is passed over": ("2/0g8 1/0 1/1 2/1g8", "saved:2"),
    # A dying worker's last message is read late.
    "a late part of a save that was given up is not answered again": (
        "1/0 2/0g8 2/1g8 1/1 3/0g8 3/1g8", "given-up:1 saved:2 saved:3",
    ),
    "parts of a save that is done change nothing": ("1/0 1/1 1/0 1/1", "saved:1"),
    # With one buffer the survivors wait for the answer before they copy again.
    "a new world ends an incomplete save": ("1/0 plan:8 1/1", "given-up:1"),
    "also if the writer has died meanwhile": ("1/0 dies plan:8", "given-up:1"),
    # It has another channel to the agent than the worker that tells the plan.
    "a part may come before the plan of its world": ("1/1g9 plan:9 1/0g9", "saved:1"),
    "a part alone is not committed": ("1/0 settle 1/1 settle", ""),
}  # fmt: skip
"""What happens, and the answers; ``N/PgG`` tells part P of attempt N in the world G."""


@pytest.mark.parametrize(("words", "answers"), PARTS_TOLD.values(), ids=PARTS_TOLD.keys())
def test_save_is_told_when_all_its_parts_are_there(
    agent: AgentOfFakes, words: str, answers: str
) -> None:
    for word in words.split():
        match word.partition(":"):
            case ("settle", _, _):
                agent.link.settle(Settle(is_urgent=False))
            case ("dies", _, _):
                agent.link.replace("killed")
            case ("plan", _, generation):
                agent.plan(int(generation))
            case (save, _, _):
                attempt, part, *generation = map(int, re.split("[/g]", save))
                agent.copied(attempt, part, *generation)
        if agent.writer is not None:
            agent.writer.serve()
        agent.hear()
    agent.link.poll(now=1e6)

    names = {(True, False): "saved", (False, True): "given-up", (False, False): "unsaved"}
    assert answers.split() == [
        f"{names[answer.is_durable, answer.is_expected]}:{answer.ticket.attempt}"
        for answer in agent.answers
    ]
    assert agent.settled == [None] * words.count("settle")
    assert agent.link.pid is not None, "nothing was waited for"


def test_host_that_saves_no_more_says_so_to_each_writer_until_another_plan_comes(
    agent: AgentOfFakes,
) -> None:
    agent.link.end_maintenance()  # there is nothing to look after
    agent.plan(1)
    agent.link.end_maintenance()
    agent.link.replace("killed")
    agent.link.start()
    agent.plan(2)

    assert agent.writer is not None
    agent.writer.serve()
    assert agent.writer.plans == [False, True]


def settle(agent: AgentOfFakes, *, is_urgent: bool = False) -> list[int | None]:
    """Ask for a settle, and let the writer begin with it; return what it will have answered."""
    agent.link.settle(Settle(is_urgent))
    return agent.settled


def wait(agent: AgentOfFakes, seconds: float) -> None:
    agent.now += seconds
    agent.link.poll(agent.now)


@pytest.mark.parametrize(
    ("told_bytes", "is_urgent", "seconds"),
    [
        ((), False, ANSWERED_WITHIN_S),  # however large the state is: a relaunch may wait behind it
        ((FILE_BYTES,), False, ANSWERED_WITHIN_S + FILE_S),
        ((FILE_BYTES, 0), False, ANSWERED_WITHIN_S),
        ((FILE_BYTES,), True, KILLED_SETTLES_WITHIN_S),
    ],
    ids=["no file has begun", "a file is written", "nothing is written any more", "no time"],
)
def test_settle_is_waited_for_as_long_as_the_file_in_hand_takes(
    agent: AgentOfFakes, told_bytes: tuple[int, ...], seconds: float, *, is_urgent: bool
) -> None:
    found = settle(agent, is_urgent=is_urgent)
    for nbytes in told_bytes:
        agent.progress(nbytes)

    wait(agent, seconds - 1)
    assert found == []
    wait(agent, 2)

    assert found == [None]


def test_wait_begins_anew_with_each_file_and_with_each_read(agent: AgentOfFakes) -> None:
    found = settle(agent)

    for nbytes in (0, 0, FILE_BYTES, 0, FILE_BYTES):
        agent.progress(nbytes)
        wait(agent, ANSWERED_WITHIN_S - 1)

    assert found == []


def test_new_writer_is_not_waited_for_as_long_as_the_file_of_the_one_before(
    agent: AgentOfFakes,
) -> None:
    agent.progress(FILE_BYTES)
    agent.link.replace("killed")
    agent.link.start()
    found = settle(agent)

    wait(agent, ANSWERED_WITHIN_S + 1)

    assert found == [None]


def test_save_is_given_up_when_its_file_takes_too_long(agent: AgentOfFakes) -> None:
    agent.copied(1, 0)
    agent.copied(1, 1)
    agent.progress(FILE_BYTES)

    wait(agent, ANSWERED_WITHIN_S + FILE_S - 1)
    assert agent.answers == []
    wait(agent, 2)

    assert [answer.is_durable for answer in agent.answers] == [False]


def test_reason_is_told_in_full_once_until_there_is_another_or_a_success() -> None:
    failed = FailedSaves()
    full = "cannot allocate /run/.tmp-000000000{0}-g1-a{1}/shard: No space left on device (ENOSPC)"

    told = [failed.sentence(10 * n, full.format(10 * n, n)) for n in (1, 2)]
    told.append(failed.sentence(30, "it is read-only"))
    told += [failed.succeeded(35) or "", failed.succeeded(36) or "nothing"]
    told.append(failed.sentence(40, "it is read-only"))

    assert told == [
        f"the checkpoint of step 10 failed: {full.format(10, 1)}",
        "the checkpoint of step 20 failed for the same reason",
        "the checkpoint of step 30 failed: it is read-only",
        "checkpoints are saved again, from step 35 on",
        "nothing",
        "the checkpoint of step 40 failed: it is read-only",
    ]
