"""A worker's last moments: who hears what, and that nobody leaves before all may."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from configs import without_faults, worker_config

from holdfast.runtime.exchange.communicator import LocalCommunicator
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.system.channel import Channel
from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker import worker as worker_module
from holdfast.runtime.worker.context import WorkerContext, journal_of
from holdfast.runtime.worker.worker import main


class Exited(BaseException):
    """The exit code with which the worker's process would have ended."""


def _exit(code: int) -> NoReturn:
    raise Exited(code)


class Still:
    """A pulse that does not beat."""

    def __init__(self, page: HeartbeatPage, interval_s: float, look: object) -> None: ...

    def start(self) -> None: ...


class Worker:
    """A worker in this process, alone in its world, and what happens at its end."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "train.py"
        self._folder = folder
        self.events: list[str] = []
        ours, theirs = socket.socketpair()
        self._agent, self._theirs = Channel(ours), theirs.detach()
        self.page = HeartbeatPage.create()
        self._others: list[Any] = []

    def run(self, script: str) -> int:
        """Run a worker to its end; return its exit code."""
        self._script.write_text(script)
        config = worker_config(script=self._script, run_dir=self._folder)
        with pytest.raises(Exited) as exited:
            main(config, self._theirs, os.dup(self.page.fd))
        for other in self._others:
            other.close()  # as the end of a process does
        code: int = exited.value.args[0]
        return code

    def join(self, config: WorkerConfig, agent: Channel, page: HeartbeatPage) -> WorkerContext:
        """Stand in for joining a world of MPI."""
        journal, events = journal_of(config), self.events
        self._others += [agent, page]

        class Leaving(LocalCommunicator):
            def leave(self) -> None:
                events.append(f"left while {page.phase.label}")

        def ask(question: dict[str, object]) -> dict[str, Any]:
            events.append(f"asked {question['kind']}")
            return {}

        finish = [lambda: events.append("finished")]
        faults = without_faults(config)
        return WorkerContext(
            config, Leaving(), journal, page, faults, agent.send, ask_agent=ask, at_end=finish
        )

    def told(self) -> dict[str, Any]:
        """Return the next message to the agent."""
        return self._agent.receive() or {}

    def close(self) -> None:
        self._agent.close()
        self.page.close()


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    found = Worker(tmp_path)
    monkeypatch.setattr(sys, "argv", [])
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(contexts, "_current", None)
    monkeypatch.setattr(contexts, "_failure", None)
    monkeypatch.setattr(worker_module, "_join", found.join)
    monkeypatch.setattr(worker_module, "listen", lambda page, agent: None)
    monkeypatch.setattr(worker_module, "Pulse", Still)
    monkeypatch.setattr(os, "_exit", _exit)
    yield found
    found.close()


def test_worker_whose_script_ended_well_leaves_with_the_others_and_says_so(worker: Worker) -> None:
    assert worker.run("") == 0

    assert worker.events == ["finished", "asked at_end", "left while leaving"]
    assert worker.told() == {"kind": "leaving"}


def test_worker_whose_script_failed_tells_why_and_waits_for_nobody(worker: Worker) -> None:
    assert worker.run("raise ValueError('no such column')") == 1

    told = worker.told()
    assert (told["kind"], told["type"], told["message"]) == (
        "error", "ValueError", "no such column",
    )  # fmt: skip
    assert worker.events == ["finished"]
    assert worker.page.phase is Phase.STARTING


@pytest.mark.parametrize(
    ("error", "code"), [("UsageError", 2), ("WorldLost", 70), ("StoppedEarly", 75)]
)
def test_worker_ends_with_the_exit_code_of_its_error(worker: Worker, error: str, code: int) -> None:
    text = f"from holdfast.runtime import errors\nraise errors.{error}('why')"

    assert worker.run(text) == code
    assert worker.told()["exit_code"] == code


def test_worker_that_was_asked_to_stop_leaves_with_the_others(worker: Worker) -> None:
    text = "from holdfast.runtime import errors\nraise errors.StopRequested('asked')"

    assert worker.run(text) == 0
    assert worker.events[-1] == "left while leaving"


def test_script_finds_the_surroundings_of_its_worker(worker: Worker) -> None:
    text = (
        "from holdfast.runtime.worker import context\n"
        "context.current(None).tell_agent({'kind': 'notice', 'text': 'here'})\n"
    )

    worker.run(text)

    assert worker.told() == {"kind": "notice", "text": "here"}
