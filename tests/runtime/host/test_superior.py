"""The agent and its superior: what is told, what is kept for the next one, who stands still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.host import superior as superior_module
from holdfast.runtime.host.superior import (
    PeerSilence,
    RemoteSuperior,
    StoppedProcesses,
    Visitor,
    kill_peer,
    kill_standing_parent,
)
from holdfast.runtime.system.channel import Channel, Listener, Message, pair
from holdfast.runtime.system.reactor import Reactor

NOBODY = 1 << 30
"""No process has this id."""


def _without_time(messages: list[Message]) -> list[Message]:
    return [{name: value for name, value in m.items() if name != "now"} for m in messages]


class Agent:
    """An agent that hosts nobody: its superior, and the orders that it was given."""

    def __init__(self, parent: int | None = None) -> None:
        self.reactor = Reactor()
        self.orders: list[Message] = []
        self.superior = RemoteSuperior(self.reactor, self.orders.append, 6.0, parent)
        self._channels: list[Channel] = []

    def visit(self, **introduction: object) -> Channel:
        """Connect and introduce somebody; return the other end of the connection."""
        ours, theirs = pair()
        visitor = Visitor(
            ours, lambda message: self.superior.introduce(visitor, message), ours.close
        )
        self.reactor.watch_channel(ours, visitor.take, visitor.end)
        self._channels.append(theirs)
        theirs.send(introduction)
        self.reactor.run_once(None)
        return theirs

    def connect(self) -> Channel:
        """Become the superior, whose greeting is read."""
        theirs = self.visit(kind="superior")
        assert theirs.receive() is not None
        return theirs

    def hear(self) -> None:
        """Handle what the superior has sent."""
        self.reactor.run_once(None)

    def poll(self, start: float, seconds: int) -> None:
        """Poll once a second."""
        for second in range(seconds + 1):
            self.superior.poll(start + second, is_idle=False)

    def close(self) -> None:
        self.superior.close()
        self.reactor.close()
        for channel in self._channels:
            channel.close()


@pytest.fixture
def agent() -> Iterator[Agent]:
    made = Agent()
    yield made
    made.close()


def test_superior_is_greeted_and_told_what_it_missed(agent: Agent) -> None:
    agent.superior.tell({"kind": "early"})
    assert not agent.superior.is_present

    theirs = agent.visit(kind="superior")
    agent.superior.tell({"kind": "late"})

    messages = theirs.drain()
    assert _without_time(messages) == [{"kind": k} for k in ("agent_ready", "early", "late")]
    assert all(isinstance(message["now"], float) for message in messages)
    assert agent.superior.is_present


def test_events_wait_again_after_the_superior_is_gone(agent: Agent) -> None:
    agent.connect().close()
    agent.hear()
    assert not agent.superior.is_present
    agent.superior.tell({"kind": "between"})

    second = agent.visit(kind="superior")

    assert _without_time(second.drain()) == [{"kind": "agent_ready"}, {"kind": "between"}]


def test_newer_superior_takes_the_place_of_an_older_one(agent: Agent) -> None:
    first, second = agent.connect(), agent.connect()

    agent.superior.tell({"kind": "told"})

    assert first.receive() is None
    assert _without_time(second.drain()) == [{"kind": "told"}]


def test_superior_is_obeyed_and_whoever_is_none_is_turned_away(agent: Agent) -> None:
    superior, stranger = agent.connect(), agent.visit(kind="stranger")
    superior.send({"kind": "kill"})
    agent.hear()

    assert stranger.receive() is None
    assert agent.orders == [{"kind": "kill"}]
    assert agent.superior.poll(100.0, is_idle=False) is None
    superior.send({"kind": "shutdown"})
    agent.hear()

    assert agent.superior.poll(101.0, is_idle=False) is ExitCode.DONE
    assert agent.orders == [{"kind": "kill"}]


def test_only_the_newest_events_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(superior_module, "_KEPT_EVENTS", 3)
    agent = Agent()
    for n in range(5):
        agent.superior.tell({"kind": "told", "n": n})

    theirs = agent.connect()

    assert [message["n"] for message in theirs.drain()] == [2, 3, 4]
    agent.close()


def test_superior_that_stands_still_is_absent_and_finds_its_events_when_it_comes_back(
    agent: Agent,
) -> None:
    theirs = agent.connect()

    agent.poll(100.0, 6)
    assert agent.superior.is_present
    agent.poll(107.0, 1)
    assert not agent.superior.is_present
    agent.superior.tell({"kind": "missed"})
    assert theirs.drain() == []

    theirs.send({"kind": "ping"})
    agent.hear()

    assert agent.superior.is_present
    assert _without_time(theirs.drain()) == [{"kind": "missed"}]


def test_superior_that_says_something_now_and_then_is_present(agent: Agent) -> None:
    theirs = agent.connect()

    for second in range(0, 100, 3):
        theirs.send({"kind": "ping"})
        agent.hear()
        agent.poll(100.0 + second, 2)

    assert agent.superior.is_present


@pytest.mark.parametrize(
    ("has_parent", "is_idle", "end"),
    [
        (True, True, None),
        (False, True, ExitCode.DONE),
        (False, False, None),
    ],
    ids=["its starter lives", "its starter died", "its workers live"],
)
def test_agent_without_a_superior_ends_once_nobody_can_need_it(
    *, has_parent: bool, is_idle: bool, end: ExitCode | None
) -> None:
    agent = Agent(parent=os.getppid() if has_parent else NOBODY)

    assert agent.superior.poll(0.0, is_idle=is_idle) is end
    agent.close()


def test_agent_that_has_lost_its_superior_ends_as_soon_as_it_is_idle(agent: Agent) -> None:
    agent.connect().close()
    agent.hear()

    far_in_the_future = 1e12
    assert agent.superior.poll(far_in_the_future, is_idle=False) is None
    assert agent.superior.poll(far_in_the_future, is_idle=True) is ExitCode.DONE


def test_signals_are_told_to_a_superior_and_end_an_agent_without(agent: Agent) -> None:
    theirs = agent.connect()

    agent.superior.take_signals(bytes([signal.SIGUSR1, signal.SIGTERM]))
    agent.superior.take_signals(bytes([signal.SIGUSR1]))

    assert _without_time(theirs.drain()) == [{"kind": "signalled", "signal": "SIGTERM"}]
    assert agent.superior.poll(100.0, is_idle=False) is None
    theirs.close()
    agent.hear()
    agent.superior.take_signals(bytes([signal.SIGUSR1]))
    assert agent.superior.poll(101.0, is_idle=False) is None
    agent.superior.take_signals(bytes([signal.SIGTERM]))
    assert agent.superior.poll(102.0, is_idle=False) is ExitCode.TERMINATED


@pytest.mark.parametrize("is_spared", [True, False])
def test_peer_is_killed_unless_it_is_the_one_to_spare(tmp_path: Path, *, is_spared: bool) -> None:
    listener = Listener(tmp_path / "sock")
    script = (
        "import socket, sys\n"
        "peer = socket.socket(socket.AF_UNIX)\n"
        "peer.connect(sys.argv[1])\n"
        "peer.recv(1)\n"
    )
    command = [sys.executable, "-I", "-S", "-c", script, str(tmp_path / "sock")]
    with subprocess.Popen(command) as peer:
        reactor, channels = Reactor(), list[Channel | None]()
        reactor.watch(listener, lambda: channels.append(listener.accept()))
        reactor.run_once(None)
        (channel,) = channels
        assert channel is not None

        kill_peer(channel, unless=peer.pid if is_spared else NOBODY)
        channel.close()

    assert peer.returncode == (0 if is_spared else -signal.SIGKILL)
    reactor.close()
    listener.close()


@pytest.mark.parametrize(("timeout_s", "limit_s"), [(1.0, 5.0), (6.0, 6.0)])
def test_peer_may_be_silent_for_some_seconds_even_if_workers_may_not(
    timeout_s: float, limit_s: float
) -> None:
    silence = PeerSilence(timeout_s)

    found = [silence.poll(100.0 + second) for second in range(round(limit_s) + 2)]

    assert found[:-1] == [None] * (round(limit_s) + 1)
    assert found[-1] == pytest.approx(limit_s + 1.0)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """The processes that are stopped."""
    pids: set[int] = set()
    monkeypatch.setattr(superior_module, "is_stopped", pids.__contains__)
    return pids


def test_only_a_process_that_was_stopped_for_too_long_is_named(stopped: set[int]) -> None:
    watched = StoppedProcesses(2.0)
    stopped |= {11, 12}

    for second in range(3):
        assert watched.poll((11, 12, 13), 100.0 + second / 2) == {}
    stopped.remove(12)
    for second in range(3, 5):
        assert watched.poll((11, 12, 13), 100.0 + second / 2) == {}

    assert watched.poll((11, 12, 13), 102.5) == {11: 2.5}


def test_process_that_goes_on_for_a_moment_stands_still_anew(stopped: set[int]) -> None:
    watched = StoppedProcesses(2.0)

    for half in range(40):
        stopped.symmetric_difference_update({11} if half % 4 == 0 else ())
        assert watched.poll((11,), 100.0 + half / 2) == {}


@pytest.mark.parametrize(
    ("is_parent", "stands", "is_killed"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_only_a_stopped_parent_of_this_very_process_is_killed(
    stopped: set[int],
    monkeypatch: pytest.MonkeyPatch,
    *,
    is_parent: bool,
    stands: bool,
    is_killed: bool,
) -> None:
    parent = os.getppid() if is_parent else 1 << 30
    stopped |= {parent} if stands else set()
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *words: killed.append(words))

    kill_standing_parent(parent)

    assert killed == [(parent, signal.SIGKILL)] * is_killed
