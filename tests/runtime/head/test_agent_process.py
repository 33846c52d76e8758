"""The agent as its supervisor holds it: how it is started, asked whether it lives, and ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from holdfast.recovery.detector import Pause
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.host import __main__ as agent_main
from holdfast.runtime.supervisor import agent_process
from holdfast.runtime.supervisor.agent_process import (
    AgentProcess,
    AgentTerms,
    begin_agent,
    dismiss_agent,
    start_agent,
)
from holdfast.runtime.system import witnessed_time
from holdfast.runtime.system.channel import Channel, Message, pair
from holdfast.runtime.system.processes import HeldProcess

LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("agent.sock")
listener.listen()
supervisor = listener.accept()[0].makefile("rb")
with open("heard", "wb") as heard:
    heard.write(b"%s %d\\n" % (os.environb[b"PYTHONHASHSEED"], os.getsid(0) == os.getpid()))
    heard.writelines(supervisor)
"""


def terms(directory: Path, *, is_verbose: bool = False) -> AgentTerms:
    return AgentTerms(
        directory=directory,
        cwd=directory,
        heartbeat_timeout_s=2.5,
        preload=("numpy", "keras"),
        lease=2,
        verbose=is_verbose,
    )


@pytest.mark.parametrize("is_verbose", [False, True])
def test_agent_reads_the_terms_that_it_was_started_on(tmp_path: Path, *, is_verbose: bool) -> None:
    command = terms(tmp_path, is_verbose=is_verbose).command()

    options = agent_main._parse(command[command.index("holdfast.runtime.host") + 1 :])

    assert (options.directory, options.private) == (tmp_path, True)
    assert (options.parent, options.lease_fd, options.ready_fd) == (os.getpid(), 2, None)
    assert (options.heartbeat_timeout, options.verbose) == (2.5, is_verbose)
    assert agent_main._names(options.preload) == ("numpy", "keras")
    assert options.entry == agent_main.DEFAULT_ENTRY


class FakeProcess:
    """A process that has ended at the given looks."""

    pid = 4711

    def __init__(self, *ends: bool) -> None:
        self._ends = iter(ends)
        self.done: list[str] = []

    def kill(self) -> None:
        self.done.append("killed")

    def has_ended(self, within_s: float) -> bool:
        self.done.append(f"waited {within_s:.0f} s")
        return next(self._ends)

    def close(self) -> None:
        self.done.append("closed")


@dataclass
class Held:
    """An agent of this process, and the other end of its channel."""

    agent: AgentProcess
    process: FakeProcess
    theirs: Channel

    def close(self) -> None:
        self.agent.leave()
        self.theirs.close()


@pytest.fixture
def hold() -> Callable[..., Held]:
    def held(*ends: bool) -> Held:
        ours, theirs = pair()
        process = FakeProcess(*ends)
        return Held(AgentProcess(ours, cast(HeldProcess, process), 6.0), process, theirs)

    return held


Hold = Callable[..., Held]


def _silence_s(held: Held, start: float, seconds: int) -> float | None:
    """Return the silence after a look each second."""
    return [held.agent.silence_s(start + second) for second in range(seconds + 1)][-1]


def test_agent_that_says_nothing_is_told_with_its_silence(hold: Hold) -> None:
    held = hold()

    assert _silence_s(held, 100.0, 6) is None
    assert held.agent.silence_s(107.0) == pytest.approx(7.0)
    held.close()


def test_any_word_of_the_agent_begins_the_silence_anew(hold: Hold) -> None:
    held = hold()

    for second in range(0, 60, 3):
        held.agent.heard()
        assert _silence_s(held, 100.0 + second, 2) is None
    held.close()


def test_each_look_asks_for_a_sign_of_life_and_tells_of_the_live_line(hold: Hold) -> None:
    held = hold()

    held.agent.silence_s(1.0)
    held.agent.silence_s(2.0, draws=True)

    asked: list[Message] = [{"kind": "ping", "draws": draws} for draws in (False, True)]
    assert held.theirs.drain() == asked
    held.close()


@pytest.mark.parametrize(
    ("ends", "done"),
    [
        ((True,), ["waited 10 s", "closed"]),
        ((False, True), ["waited 10 s", "killed", "waited 10 s", "closed"]),
        ((False, False), ["waited 10 s", "killed", "waited 10 s", "closed"]),
    ],
    ids=["at once", "when it is killed", "never"],
)
def test_agent_is_told_to_end_and_killed_only_if_it_does_not(
    hold: Hold, ends: tuple[bool, ...], done: list[str]
) -> None:
    held = hold(*ends)

    held.agent.end()

    assert held.theirs.drain() == [{"kind": "shutdown"}]
    assert held.process.done == done
    held.close()


def test_agent_that_is_left_hears_nothing_but_the_end_of_the_connection(hold: Hold) -> None:
    held = hold()

    held.agent.leave()

    assert held.theirs.drain() == []
    assert held.theirs.is_closed
    assert held.process.done == []
    held.close()


def test_order_to_an_agent_that_is_gone_fails_nothing(hold: Hold) -> None:
    held = hold()
    held.theirs.close()

    held.agent.tell({"kind": "kill"})
    held.agent.tell({"kind": "kill"})
    held.close()


@dataclass(frozen=True)
class ShellTerms(AgentTerms):
    """The terms of a shell that stands for the agent."""

    script: str = ""

    def command(self) -> list[str]:
        """Return the shell's command line."""
        return ["sh", "-c", f"echo >> starts; {self.script}"]


def shell(directory: Path, script: str) -> ShellTerms:
    return ShellTerms(
        directory=directory,
        cwd=directory,
        heartbeat_timeout_s=2.5,
        preload=(),
        lease=2,
        verbose=False,
        script=script,
    )


@pytest.mark.process
@pytest.mark.parametrize(
    ("script", "code", "starts"), [("exit 3", "3", 1), ("kill -KILL $$", "-9", 3)]
)
def test_only_an_agent_that_was_struck_is_started_again_and_not_for_ever(
    tmp_path: Path, script: str, code: str, starts: int
) -> None:
    with pytest.raises(
        RecoveryImpossible, match=rf"did not start \(exit code {code}\); .* `holdfast doctor`"
    ):
        start_agent(shell(tmp_path, script), os.environ)

    assert (tmp_path / "starts").read_text() == "\n" * starts


@pytest.mark.process
def test_time_in_which_the_job_stood_still_is_told_and_takes_no_agent_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent listens only after three pauses of a minute each, which the host's clock counts."""
    (tmp_path / "listener.py").write_text(LISTENER)
    (tmp_path / "paused").write_text("")
    script = f"until test $(wc -l < paused) = 3; do :; done; exec {sys.executable}"
    away, heard = [0.0], list[Pause]()
    now, wait = time.monotonic, time.sleep

    def told(pause: Pause) -> None:
        heard.append(pause)
        with (tmp_path / "paused").open("a") as paused:
            paused.write("\n")

    def sleep(seconds: float) -> None:
        wait(seconds)
        away[0] += 66.0 if len(heard) < 3 else 0.0

    clock = SimpleNamespace(monotonic=lambda: now() + away[0], sleep=sleep)
    for module in (agent_process, witnessed_time):
        monkeypatch.setattr(module, "time", clock)

    start_agent(shell(tmp_path, f"{script} -S listener.py"), os.environ, None, told).end()

    assert [round(pause.seconds / 66.0) for pause in heard] == [1, 1, 1]
    assert (tmp_path / "starts").read_text() == "\n"


@pytest.mark.process
def test_agent_that_is_struck_once_is_spoken_to_after_its_second_start(tmp_path: Path) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    script = f"test -s starts && test $(wc -l < starts) = 1 && kill -KILL $$; exec {sys.executable}"
    environment = {"PATH": os.environ["PATH"]}

    agent = start_agent(shell(tmp_path, f"{script} -S listener.py"), environment)
    agent.end()

    assert (tmp_path / "starts").read_text() == "\n\n"
    assert (tmp_path / "heard").read_text().splitlines() == [
        "0 1",
        '{"kind":"supervisor"}',
        '{"kind":"shutdown"}',
    ]


@pytest.mark.process
@pytest.mark.parametrize("is_struck", [False, True])
def test_agent_that_was_begun_is_spoken_to_or_followed_by_another(
    tmp_path: Path, *, is_struck: bool
) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    terms = shell(tmp_path, f"exec {sys.executable} -S listener.py")
    environment = {"PATH": os.environ["PATH"]}
    strike = "kill -KILL $$" if is_struck else terms.script
    begun = begin_agent(shell(tmp_path, strike), environment)
    if is_struck:
        begun.wait()

    agent = start_agent(terms, environment, begun)
    agent.end()

    assert (tmp_path / "starts").read_text() == "\n" * (1 + is_struck)


@pytest.mark.process
def test_agent_that_nobody_wants_is_ended(tmp_path: Path) -> None:
    begun = begin_agent(shell(tmp_path, "exec sleep 600"), {"PATH": os.environ["PATH"]})

    dismiss_agent(begun)

    assert begun.returncode == -signal.SIGKILL
