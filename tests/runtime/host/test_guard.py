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
from holdfast.runtime.system.channel import FDS, Listener, Message, pair, to_message

PEACE = guard._WORKER_HAS_LEFT
COMMAND = (sys.executable, "-I", "-S", guard.__file__)


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


class Guard:
    """A real guard, and its agent in the test's hands."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self._listener = Listener(folder / "agent.sock")
        self._theirs, ours = os.pipe()
        self.environment = {"PMI_RANK": "2", "PMI_FD": str(ours), **environment}
        told = {"HOLDFAST_AGENT": str(folder / "agent.sock"), "HOLDFAST_GENERATION": "3"}
        self.process = subprocess.Popen(COMMAND, env=told | self.environment, pass_fds=[ours])
        os.close(ours)
        assert select.select([self._listener], [], [], 60)[0]
        agent = self._listener.accept()
        assert agent is not None
        self.agent = agent

    def hello(self) -> Message:
        hello = self.agent.receive()
        assert hello is not None
        return hello

    def hear(self) -> bytes:
        """Return what has come to the launcher from the rank, or from the worker in its place."""
        return os.read(self._theirs, 100)

    def close(self) -> None:
        self.agent.close()
        self.process.kill()
        self.process.wait()
        self._listener.close()
        os.close(self._theirs)


@pytest.fixture
def guarding(tmp_path: Path) -> Iterator[Guard]:
    made = Guard(tmp_path)
    yield made
    made.close()


@pytest.mark.process
def test_guard_hands_over_the_connection_that_hydra_gave_its_rank(guarding: Guard) -> None:
    hello = guarding.hello()

    assert (hello["rank"], hello["generation"]) == (2, 3)
    assert hello["environment"] == guarding.environment
    (connection,) = hello[FDS]
    os.write(connection, b"from the worker")
    os.close(connection)
    assert guarding.hear() == b"from the worker"
    assert guarding.hear() == b""  # the guard keeps no end of it


@pytest.mark.process
@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ((PEACE[:7], PEACE[7:]), 0),
        ((), -signal.SIGKILL),
        (None, -signal.SIGKILL),
        ((PEACE[:7],), -signal.SIGKILL),
        ((PEACE.replace(b"Left", b"Lost"),), -signal.SIGKILL),
        ((PEACE + b"\n",), -signal.SIGKILL),
    ],
    ids=["the word", "agent gone", "hello unread", "half a word", "another word", "more words"],
)
def test_guard_ends_in_peace_after_one_word_and_kills_itself_after_everything_else(
    guarding: Guard, pieces: tuple[bytes, ...] | None, code: int
) -> None:
    assert select.select([guarding.agent], [], [], 60)[0]
    for fd in () if pieces is None else guarding.hello()[FDS]:
        os.close(fd)

    for piece in pieces or ():
        os.write(guarding.agent.fileno(), piece)
    guarding.agent.close()

    assert guarding.process.wait(60) == code


@pytest.mark.parametrize(
    ("ranks", "rank"),
    [
        ({"OMPI_COMM_WORLD_RANK": "3", "PMIX_RANK": "4", "PMI_RANK": "5"}, 3),
        ({"PMIX_RANK": "4", "PMI_RANK": "5"}, 4),
        ({"PMI_RANK": "5"}, 5),
    ],
    ids=["Open MPI", "PMIx", "Hydra"],
)
def test_worker_gets_its_rank_and_what_mpi_told_it_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, ranks: dict[str, str], rank: int
) -> None:
    told = {
        **ranks,
        "PMIX_NAMESPACE": "job.1",
        "OPAL_PREFIX": "/opt/mpi",
        "HYDI_CONTROL_FD": "7",
        "I_MPI_FABRICS": "shm",
        "UCX_TLS": 'posix,"cma"',
    }
    other = {"TMPDIR": "/tmp/launch-1", "HOLDFAST_GENERATION": "7", "XPMIX_RANK": "1", "PMIX": "2"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "environ", {**told, **other})
        hello = json.loads(guard._hello(0))

    assert (hello["kind"], hello["rank"], hello["generation"]) == ("GuardHello", rank, 7)
    assert hello["directory"] == os.getcwd()
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
        COMMAND,
        env={"HOLDFAST_AGENT": str(path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert ended.returncode == -signal.SIGKILL
    assert f"no agent at {path}: " in ended.stderr
    assert ended.stderr.endswith("is it still running?\n")
