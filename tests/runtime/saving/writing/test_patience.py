"""How long the agent waits for its writer: for what the disk is busy with, and no longer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_writer import AgentOfFakes

from holdfast.runtime.saving.writer_link import (
    ANSWERED_WITHIN_S,
    KILLED_SETTLES_WITHIN_S,
    SLOWEST_BYTES_PER_S,
)
from holdfast.runtime.system.channel import Message

FILE_BYTES = 500_000_000
FILE_S = FILE_BYTES / SLOWEST_BYTES_PER_S
ASKED = [{"kind": "mend", "step": 10}, {"kind": "keeps"}, {"kind": "open"}, {"kind": "settle"}]


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentOfFakes]:
    agent = AgentOfFakes(monkeypatch)
    agent.link.start()
    yield agent
    agent.close()


def ask(agent: AgentOfFakes, question: Message) -> list[Message]:
    """Ask, and let the writer begin with the answer."""
    found: list[Message] = []
    if question["kind"] == "settle":
        agent.link.settle(found.append)
    else:
        agent.link.ask(question, found.append)
    return found


def wait(agent: AgentOfFakes, seconds: float) -> None:
    agent.now += seconds
    agent.link.look(agent.now)


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question["kind"])
def test_writer_that_has_begun_no_file_is_waited_for_a_minute(
    agent: AgentOfFakes, question: Message
) -> None:
    """However large the state is: a relaunch may wait behind it."""
    found = ask(agent, question)

    wait(agent, ANSWERED_WITHIN_S - 1)
    assert found == []
    wait(agent, 2)

    assert "makes no progress" in found[0]["reason"]


@pytest.mark.parametrize("question", ASKED, ids=lambda question: question["kind"])
def test_file_that_is_being_written_has_the_time_that_its_bytes_take(
    agent: AgentOfFakes, question: Message
) -> None:
    """A question that waits behind a save or a mend has as long as that."""
    found = ask(agent, question)
    agent.progress(FILE_BYTES)

    wait(agent, ANSWERED_WITHIN_S + FILE_S - 1)
    assert found == []
    wait(agent, 2)

    assert "makes no progress" in found[0]["reason"]


def test_wait_begins_anew_with_each_file_and_with_each_read(agent: AgentOfFakes) -> None:
    found = ask(agent, ASKED[0])
    for nbytes in (0, 0, FILE_BYTES, 0, FILE_BYTES):
        agent.progress(nbytes)
        wait(agent, ANSWERED_WITHIN_S - 1)
    assert found == []

    agent.progress(0)
    wait(agent, ANSWERED_WITHIN_S + 1)

    assert "makes no progress" in found[0]["reason"], "nothing is being written any more"


def test_new_writer_is_not_waited_for_as_long_as_the_file_of_the_one_before(
    agent: AgentOfFakes,
) -> None:
    agent.progress(FILE_BYTES)
    agent.link.replace("killed")
    agent.link.start()
    found = ask(agent, ASKED[0])

    wait(agent, ANSWERED_WITHIN_S + 1)

    assert "makes no progress" in found[0]["reason"]


def test_save_is_given_up_when_its_file_takes_too_long(agent: AgentOfFakes) -> None:
    agent.copied(1, 0)
    agent.copied(1, 1)
    agent.progress(FILE_BYTES)

    wait(agent, ANSWERED_WITHIN_S + FILE_S - 1)
    assert agent.answers == []
    wait(agent, 2)

    assert [answer["kind"] for answer in agent.answers] == ["unsaved"]


@pytest.mark.parametrize("goes_through", [False, True])
def test_answer_for_a_hanging_writer_tells_if_the_run_directory_had_to_take_the_save(
    agent: AgentOfFakes, *, goes_through: bool
) -> None:
    for part in range(2):
        agent.copied(1, part, goes_through=goes_through)

    wait(agent, ANSWERED_WITHIN_S + 1)

    assert [answer["is_of_run"] for answer in agent.answers] == [goes_through]


def test_settle_for_whom_does_not_want_to_wait_has_seconds(agent: AgentOfFakes) -> None:
    found: list[Message] = []
    agent.link.settle(found.append, is_urgent=True)
    agent.progress(FILE_BYTES)

    wait(agent, KILLED_SETTLES_WITHIN_S - 1)
    assert found == []
    wait(agent, 2)

    assert found[0]["step"] is None
