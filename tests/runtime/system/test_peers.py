"""Peers and helpers that stand still."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.system import processes
from holdfast.runtime.system.channel import Channel, Listener
from holdfast.runtime.system.processes import (
    PeerSilence,
    StoppedProcesses,
    kill_peer,
    kill_standing_parent,
)
from holdfast.runtime.system.reactor import Reactor

NOBODY = 1 << 30
"""No process has this id."""


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
    monkeypatch.setattr(processes, "is_stopped", pids.__contains__)
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
