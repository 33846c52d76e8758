"""An agent that answers, one that is silent, and none at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Channel, Listener
from holdfast.runtime.tools.status import AgentQuestion

SILENT_S = 0.05


@contextmanager
def agent_in(path: Path, serve: Callable[[Channel], None]) -> Iterator[AgentQuestion]:
    """A run directory whose lease names an agent, which serves each of its visitors."""
    directory = RunDirectory(path)
    lease = directory.acquire_lease()
    lease.name_agent(path / "agent.sock")
    listener = Listener(path / "agent.sock")
    visitors: list[Channel] = []

    def accept() -> None:
        channel = listener.accept()
        if channel is not None:
            visitors.append(channel)
            serve(channel)

    thread = threading.Thread(target=accept)
    thread.start()
    question = AgentQuestion(directory)
    yield question
    question.close()
    thread.join()
    for visitor in visitors:
        visitor.close()
    listener.close()
    os.close(lease.fileno())


def test_agent_is_asked_again_and_again(tmp_path: Path) -> None:
    def serve(channel: Channel) -> None:
        for number in range(3):
            assert channel.receive() == {"kind": "status"}
            channel.send({"kind": "status", "number": number})

    with agent_in(tmp_path, serve) as question:
        answers = [question.ask(90.0) for _ in range(3)]

    assert [answer["number"] for answer in answers if answer] == [0, 1, 2]
    assert not question.is_silent


def test_silent_agent_is_asked_once_and_its_late_answer_counts(tmp_path: Path) -> None:
    may_answer, asked = threading.Event(), []

    def serve(channel: Channel) -> None:
        may_answer.wait()
        asked.append(channel.receive())
        channel.send({"kind": "status", "number": 1})

    with agent_in(tmp_path, serve) as question:
        assert question.ask(SILENT_S) is None
        assert question.is_silent
        assert question.ask(SILENT_S) is None
        may_answer.set()
        answer = question.ask(90.0)

        assert answer is not None
        assert not question.is_silent
        assert asked == [{"kind": "status"}]


def test_agent_that_goes_away_has_no_answer(tmp_path: Path) -> None:
    def serve(channel: Channel) -> None:
        (tmp_path / "lease").write_text("{}")  # nobody is found at another try
        channel.close()

    with agent_in(tmp_path, serve) as question:
        assert question.ask(90.0) is None
        assert not question.is_silent


def test_run_without_an_agent_has_nobody_to_ask(tmp_path: Path) -> None:
    question = AgentQuestion(RunDirectory(tmp_path))

    assert question.ask() is None
    assert not question.is_silent
