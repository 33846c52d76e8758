"""A head as its client sees it: how it is started or found, asked whether it lives, and ended."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import pytest

from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.head import __main__ as head_main
from holdfast.runtime.head import head_process
from holdfast.runtime.head.head_process import (
    HeadProcess,
    HeadTerms,
    begin_head,
    connect_to_head,
)
from holdfast.runtime.head.visits import (
    ClientPing,
)
from holdfast.runtime.host.pool_process import ENTRY
from holdfast.runtime.system.channel import Channel, pair, to_message
from holdfast.runtime.system.processes import HeldProcess

LISTENER = """
import os, socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind("agent.sock")
listener.listen()
client = listener.accept()[0].makefile("rb")
with open("heard", "wb") as heard:
    heard.write(b"%s %d %s\\n" % (
        os.environb[b"PYTHONHASHSEED"], os.getsid(0) == os.getpid(), os.environb[b"A"],
    ))
    heard.writelines(client)
"""


def terms(directory: Path, *, is_verbose: bool = False) -> HeadTerms:
    return HeadTerms(
        directory=directory,
        cwd=directory,
        environment={},
        heartbeat_timeout_s=2.5,
        preload=("numpy", "keras"),
        lease=2,
        verbose=is_verbose,
    )


@pytest.mark.parametrize("is_verbose", [False, True])
def test_head_reads_the_terms_that_it_was_started_on(tmp_path: Path, *, is_verbose: bool) -> None:
    command = terms(tmp_path, is_verbose=is_verbose).command()

    options = head_main._parse(command[command.index("holdfast.runtime.head") + 1 :])

    assert options.directory == tmp_path
    assert (options.parent, options.lease_fd) == (os.getpid(), 2)
    assert (options.heartbeat_timeout, options.verbose) == (2.5, is_verbose)
    assert head_main._names(options.preload) == ("numpy", "keras")
    assert options.entry == ENTRY


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
    """A head in this process, and the other end of its channel."""

    head: HeadProcess
    process: FakeProcess
    theirs: Channel

    def close(self) -> None:
        self.head.channel.close()
        self.theirs.close()


@pytest.fixture
def hold() -> Callable[..., Held]:
    def held(*ends: bool) -> Held:
        ours, theirs = pair()
        process = FakeProcess(*ends)
        return Held(HeadProcess(ours, cast(HeldProcess, process), 6.0), process, theirs)

    return held


Hold = Callable[..., Held]


def test_each_look_asks_for_a_sign_of_life_and_tells_of_the_terminal(hold: Hold) -> None:
    held = hold()

    held.head.silence_s(1.0, 0)
    held.head.silence_s(2.0, 99)

    assert held.theirs.drain() == [to_message(ClientPing(columns)) for columns in (0, 99)]
    held.close()


@pytest.mark.parametrize(
    ("ends", "done"),
    [
        ((True,), ["waited 30 s", "closed"]),
        ((False, True), ["waited 30 s", "killed", "waited 10 s", "closed"]),
        ((False, False), ["waited 30 s", "killed", "waited 10 s", "closed"]),
    ],
    ids=["at once", "when it is killed", "never"],
)
def test_head_whose_job_is_over_is_killed_only_if_it_does_not_end(
    hold: Hold, ends: tuple[bool, ...], done: list[str]
) -> None:
    held = hold(*ends)

    held.head.end()

    assert held.theirs.drain() == []
    assert held.theirs.is_closed
    assert held.process.done == done
    held.close()


@dataclass(frozen=True)
class ShellTerms(HeadTerms):
    """The terms of a shell that stands for the head."""

    script: str = ""

    def command(self) -> list[str]:
        """Return the shell's command line."""
        return ["sh", "-c", f"echo >> starts; {self.script}"]


def shell(directory: Path, script: str) -> ShellTerms:
    return ShellTerms(
        directory=directory,
        cwd=directory,
        environment={"PATH": os.environ["PATH"], "A": "1"},
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
def test_only_a_head_that_was_struck_is_started_again_and_not_for_ever(
    tmp_path: Path, script: str, code: str, starts: int
) -> None:
    with pytest.raises(
        RecoveryImpossible, match=rf"did not start \(exit code {code}\); .* `holdfast doctor`"
    ):
        connect_to_head(shell(tmp_path, script))

    assert (tmp_path / "starts").read_text() == "\n" * starts


@pytest.mark.process
def test_head_that_cannot_be_started_is_asked_for_again_and_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory, which the last head has taken with it, is made again."""
    monkeypatch.setattr(head_process, "_STARTS_WITHIN_S", 0.0)
    gone = replace(shell(tmp_path / "base", "exit 3"), cwd=tmp_path / "nowhere")

    with pytest.raises(RecoveryImpossible, match=r"no agent of this host can be started: .*nowher"):
        connect_to_head(gone)

    assert (tmp_path / "base").is_dir()


@pytest.mark.process
def test_head_that_is_stopped_before_it_listens_is_killed_and_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    monkeypatch.setattr(head_process, "SHORTEST_SILENCE_S", 0.0)
    script = f"test $(wc -l < starts) = 1 && kill -STOP $$; exec {sys.executable} -S listener.py"

    connect_to_head(shell(tmp_path, script)).end()

    assert (tmp_path / "starts").read_text() == "\n\n"


@pytest.mark.process
@pytest.mark.parametrize("is_struck", [False, True])
def test_head_that_was_begun_is_spoken_to_or_followed_by_another(
    tmp_path: Path, *, is_struck: bool
) -> None:
    (tmp_path / "listener.py").write_text(LISTENER)
    wanted = shell(tmp_path, f"exec {sys.executable} -S listener.py")
    begun = begin_head(shell(tmp_path, "kill -KILL $$") if is_struck else wanted)
    if is_struck:
        begun.wait()

    head = connect_to_head(wanted, begun)
    assert head.child is not None
    assert (head.child is begun) is not is_struck
    assert head.child.pid == head.process.pid
    head.channel.post({"kind": "client", "job": {}})
    head.end()

    assert (tmp_path / "starts").read_text() == "\n" * (1 + is_struck)
    assert (tmp_path / "heard").read_text().splitlines() == [
        "0 1 1",
        '{"kind":"client","job":{}}',
    ]
