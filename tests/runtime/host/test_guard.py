"""What a guard tells its agent, and the one word after which it need not kill itself."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runtime.host import guard
from holdfast.runtime.host.hosted_worker import WorkerLeft
from holdfast.runtime.system.channel import FDS, Listener, pair, to_message

PEACE = guard._WORKER_HAS_LEFT


@pytest.mark.parametrize(
    "text",
    [
        *("", "plain", 'a "quoted" \\ path', "line\nbreak\ttab\x00\x1f\x7f", "ü \u2028 \U0001f600"),
        os.fsdecode(b"/data/\xff\xfe"),
    ],
)
def test_text_is_quoted_as_json_does(text: str) -> None:
    """As its bytes, which mean the same in each locale."""
    assert os.fsencode(json.loads(guard._quoted(text))) == os.fsencode(text)
    assert guard._quoted(text).isascii()


def test_peace_is_spelled_as_channels_do() -> None:
    ours, theirs = pair()
    ours.send(to_message(WorkerLeft()))

    received = os.read(theirs.fileno(), 100)

    assert received == guard._WORKER_HAS_LEFT
    ours.close()
    theirs.close()


def test_guard_imports_only_what_is_compiled_in() -> None:
    code = (
        f"import sys\nsource = open({guard.__file__!r}).read()\n"
        "exec(compile(source, 'guard', 'exec'), {'__name__': 'guard'})\n"
        "heavy = ('json', 'socket', 'enum', 're', 'typing', 'holdfast')\n"
        "print([module for module in heavy if module in sys.modules])"
    )

    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code], capture_output=True, check=True, text=True
    )

    assert found.stdout == "[]\n"


@pytest.mark.process
def test_guard_hands_over_the_connection_that_hydra_gave_its_rank(tmp_path: Path) -> None:
    listener = Listener(tmp_path / "agent.sock")
    theirs, ours = os.pipe()
    environment = {
        "HOLDFAST_AGENT": str(tmp_path / "agent.sock"),
        "HOLDFAST_GENERATION": "3",
        "PMI_RANK": "2",
        "PMI_FD": str(ours),
    }
    command = [sys.executable, "-I", "-S", guard.__file__]
    process = subprocess.Popen(command, env=environment, pass_fds=[ours])
    os.close(ours)

    assert select.select([listener], [], [], 60)[0]
    agent = listener.accept()
    assert agent is not None
    hello = agent.receive()

    assert hello is not None
    assert (hello["rank"], hello["generation"]) == (2, 3)
    assert hello["environment"] == {"PMI_RANK": "2", "PMI_FD": str(ours)}
    (connection,) = hello[FDS]
    os.write(connection, b"from the worker")
    os.close(connection)
    assert os.read(theirs, 100) == b"from the worker"
    assert os.read(theirs, 100) == b""  # the guard keeps no end of it
    agent.close()
    listener.close()
    os.close(theirs)
    assert process.wait(60) == -9


class Killed(BaseException):
    """The guard has killed itself."""


class Agent:
    """A connection on which these pieces arrive one by one; an empty one is its end."""

    def __init__(self, *pieces: bytes | OSError) -> None:
        self.pieces = list(pieces)
        self._readable, writable = os.pipe()
        os.close(writable)

    def fileno(self) -> int:
        return self._readable

    def recv(self, _bytes: int) -> bytes:
        assert self.pieces, "the guard waits for more"
        piece = self.pieces.pop(0)
        if isinstance(piece, OSError):
            raise piece
        return piece

    def close(self) -> None:
        os.close(self._readable)


@pytest.fixture(autouse=True)
def mortal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a guard that kills itself raise an error instead, since it is this process."""

    def die() -> None:
        raise Killed

    monkeypatch.setattr(guard, "_die", die)


@pytest.fixture
def launcher() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe; the first is readable when the launcher is gone."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def _wait(agent: Agent, launcher_end: int) -> None:
    try:
        guard._wait(agent, launcher_end)  # type: ignore[arg-type]
    finally:
        agent.close()


@pytest.mark.parametrize("size", [len(PEACE), 7, 1])
def test_guard_whose_worker_has_left_ends_in_peace(launcher: tuple[int, int], size: int) -> None:
    agent = Agent(*(PEACE[i : i + size] for i in range(0, len(PEACE), size)))

    _wait(agent, launcher[0])

    assert agent.pieces == []


@pytest.mark.parametrize(
    "pieces",
    [
        (b"",),
        (ConnectionResetError(),),
        (PEACE[:7], b""),
        (PEACE.replace(b"Left", b"Lost"),),
        (PEACE + b"\n",),
    ],
    ids=["agent gone", "agent lost", "half a word", "another word", "more words"],
)
def test_guard_kills_itself_after_everything_else(
    launcher: tuple[int, int], pieces: tuple[bytes | OSError, ...]
) -> None:
    with pytest.raises(Killed):
        _wait(Agent(*pieces), launcher[0])


def test_guard_kills_itself_with_its_launcher_whatever_the_agent_says(
    launcher: tuple[int, int],
) -> None:
    os.write(launcher[1], b"gone")

    with pytest.raises(Killed):
        _wait(Agent(PEACE), launcher[0])


@pytest.mark.parametrize(
    ("ranks", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "4", "PMI_RANK": "5"}, 3),
        ({"PMIX_RANK": "4", "PMI_RANK": "5"}, 4),
        ({"PMI_RANK": "5"}, 5),
    ],
    ids=["Open MPI", "PMIx", "Hydra"],
)
def test_rank_is_that_of_the_job_under_every_launcher(
    monkeypatch: pytest.MonkeyPatch, ranks: dict[str, str], rank: int
) -> None:
    for name in guard._RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in {**ranks, "HOLDFAST_GENERATION": "7"}.items():
        monkeypatch.setenv(name, value)

    hello = json.loads(guard._hello(0))

    assert (hello["kind"], hello["rank"], hello["generation"]) == ("GuardHello", rank, 7)
    assert hello["directory"] == os.getcwd()


def test_worker_gets_what_mpi_told_its_rank_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told = {
        "OMPI_COMM_WORLD_RANK": "0",
        "PMIX_NAMESPACE": "job.1",
        "OPAL_PREFIX": "/opt/mpi",
        "HYDI_CONTROL_FD": "7",
        "I_MPI_FABRICS": "shm",
        "UCX_TLS": 'posix,"cma"',
    }
    other = {"TMPDIR": "/tmp/launch-1", "HOLDFAST_GENERATION": "1", "XPMIX_RANK": "1", "PMIX": "2"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {**told, **other})
        hello = json.loads(guard._hello(0))

    assert hello["environment"] == told


def test_guard_reaches_an_agent_whose_path_is_longer_than_a_socket_may_have(
    tmp_path: Path,
) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    listener = Listener(folder / "agent.sock")

    connection = guard._connect(str(folder / "agent.sock"))

    agent = listener.accept()
    assert agent is not None
    assert agent.peer_pid == os.getpid()
    connection.close()
    agent.close()
    listener.close()


@pytest.mark.process
def test_guard_without_an_agent_says_so_and_kills_itself(tmp_path: Path) -> None:
    path = tmp_path / "nothing" / "agent.sock"

    ended = subprocess.run(
        [sys.executable, "-I", "-S", guard.__file__],
        env={"HOLDFAST_AGENT": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == -signal.SIGKILL
    assert f"no agent at {path}: " in ended.stderr
    assert ended.stderr.endswith("is it still running?\n")
