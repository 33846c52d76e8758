"""The agent of another host, as a real process whose connection a test holds.

Its workers are tiny ones, without MPI.  No remote shell is needed: stdin and stdout are pipes.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from configs import worker_config

from holdfast.recovery.event import WorkerExited
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host_messages import (
    BeginLaunch,
    Down,
    KillWorker,
    LetBegin,
    MakeWorkers,
    Up,
)
from holdfast.runtime.host.output import OutputForwarder, Streams
from holdfast.runtime.hosts.remote_host import HostStart, RemoteHost, python_there
from holdfast.runtime.hosts.wire import ANSWER, FROM_HOST, Greeting, HostFacts, Question, versions
from holdfast.runtime.system.channel import LineChannel, Message, to_message
from holdfast.runtime.system.processes import (
    children_of,
    is_alive,
    marked_processes,
    name_of,
)
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.witnessed_time import Bound
from holdfast.runtime.system.worker_status import WorkerStatus, lease_clock_s

pytestmark = pytest.mark.process

_WITHIN_S = 120.0
_WORKERS = Path(__file__).parents[2] / "support" / "processes"


class Far:
    """The head's end of the connection to an agent."""

    def __init__(self, directory: Path, timeout_s: float) -> None:
        self.mark = f"holdfast-far-{os.getpid()}-{directory.name}"
        command = python_there()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        fds = (self.process.stdout.fileno(), self.process.stdin.fileno())
        self.channel = LineChannel(*map(os.dup, fds))
        self.process.stdin.close()
        self.process.stdout.close()
        self.lines: list[Message] = []
        self.pings = 0
        self.directory = directory
        environment = {**os.environ, "PYTHONPATH": str(_WORKERS), "HOLDFAST_FAR": self.mark}
        greeting = Greeting("b", environment, str(directory), timeout_s, (), "tiny_worker:main")
        self.channel.send(to_message(greeting))

    def tell(self, message: Down) -> None:
        self.channel.send(to_message(message))

    def ping(self, heard: int | None = None) -> None:
        """Ping, and name an answer; without a number, the last one that has come."""
        self.pings += 1
        numbers = [line["number"] for line in self.lines if line["kind"] == "Pong"]
        told = max(numbers, default=0) if heard is None else heard
        self.channel.send({"kind": "Ping", "number": self.pings, "heard": told})

    def wait_until_heard(self) -> None:
        """Wait until the agent has read all that it was told."""
        unread = array.array("i", [1])
        deadline = time.monotonic() + _WITHIN_S
        while unread[0]:
            assert time.monotonic() < deadline
            fcntl.ioctl(self.channel.write_fd, termios.FIONREAD, unread)

    def wait_for(self, is_it: Callable[[Message], bool], *, pings: bool = True) -> Message:
        """Return the first line that ``is_it``; it pings meanwhile, as a head does."""
        seen, deadline = 0, time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            fresh = self.channel.drain()
            self.lines += fresh
            self.take(fresh)
            for line in self.lines[seen:]:
                if is_it(line):
                    return line
            seen = len(self.lines)
            assert not self.channel.is_closed, self.lines
            if pings:
                self.ping()
            time.sleep(0.05)
        pytest.fail(f"it never came: {self.lines}")

    def take(self, lines: list[Message]) -> None:
        """Let as much output come as has been read, as a head does."""
        for line in lines:
            if line["kind"] in ("Output", "LogText"):
                self.channel.send({"kind": "Taken", "size_bytes": len(line["lines"])})

    def wait_for_up(self, kind: type[Up], **expected: Any) -> Any:
        """Return the first message of a kind with such fields."""

        def is_it(line: Message) -> bool:
            if line["kind"] != kind.__name__:
                return False
            found = FROM_HOST.decode(line)
            return all(getattr(found, name) == value for name, value in expected.items())

        return FROM_HOST.decode(self.wait_for(is_it))

    def output(self) -> list[str]:
        """Return what workers have printed, as it has come."""
        return [line["lines"] for line in self.lines if line["kind"] == "Output"]

    def helpers(self) -> dict[str, int]:
        """Return the agent's children by their names, which they take when they have begun."""
        return {name_of(pid): pid for pid in children_of(self.process.pid)}

    def wait_until_empty(self, *pids: int) -> None:
        """Wait until no process of the host is left, and none of ``pids``.

        A process that is ending loses its mark before it is gone.
        """
        deadline = time.monotonic() + _WITHIN_S
        self.process.wait(_WITHIN_S)
        while marked_processes(self.mark) or any(map(is_alive, pids)):
            assert time.monotonic() < deadline, (marked_processes(self.mark), pids)
            time.sleep(0.05)

    def worker(self, behaviour: str, number: int = 1) -> int:
        """Start a worker, and return its process once it trains."""
        config = worker_config(
            number, (0, number), argv=(behaviour,), run_dir=self.directory, heartbeat_timeout_s=5.0
        )
        self.tell(BeginLaunch(config))
        self.tell(MakeWorkers(config.generation, (WorkerId(number),)))
        self.tell(LetBegin(config.generation, WorkerId(number), {}, str(self.directory)))

        def is_joined(line: Message) -> bool:
            return line["kind"] == "Notice" and '"joined"' in line["text"]

        return int(json.loads(self.wait_for(is_joined)["text"])["report"]["pid"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[float], Far]]:
    started: list[Far] = []

    def begin(timeout_s: float = 60.0) -> Far:
        started.append(Far(tmp_path, timeout_s))
        return started[-1]

    yield begin
    for far in started:
        far.channel.close()
        if far.process.poll() is None:
            os.kill(far.process.pid, signal.SIGCONT)
        far.wait_until_empty()


def test_worker_lives_and_dies_by_messages_and_its_words_are_mirrored(
    start: Callable[..., Far],
) -> None:
    far = start()
    far.worker("wait")

    def has_step(line: Message) -> bool:
        return line["kind"] == "Words" and any(of["words"].get("step") == 41 for of in line["of"])

    far.wait_for(has_step)
    far.tell(KillWorker(worker_config().generation, WorkerId(1), "the head says so"))
    event = far.wait_for_up(WorkerExited, worker=1)

    assert (event.cause, event.step) == ("the head says so", 41)


def test_all_that_is_told_overtakes_output_that_the_head_has_not_taken(
    start: Callable[..., Far],
) -> None:
    printed = ("1" * 79 + "\n") * 20_000
    far = start()
    pid = far.worker("print_much_at_gate")
    (far.directory / "gate").touch()
    while is_alive(pid):  # its agent takes all of its output; the head takes nothing
        time.sleep(0.01)
    far.lines.clear()

    for _ in range(3):
        far.ping()
        far.wait_until_heard()
    far.wait_for(lambda line: line["kind"] == "WorkerExited", pings=False)
    # What was in the worker's pipe at its end may come after that.
    far.wait_for(lambda _: len("".join(far.output())) >= len(printed), pings=False)

    kinds = [line["kind"] for line in far.lines]
    numbers = [line.get("number") for line in far.lines]
    pongs = [number for number in numbers if number is not None]
    assert "".join(far.output()) == printed
    assert pongs == [*range(pongs[0], far.pings + 1)]
    # The agent has read the last ping, so it had answered the one before.
    before_pong = kinds[: numbers.index(far.pings - 1)].count("Output")
    before_end = kinds[: kinds.index("WorkerExited")].count("Output")
    assert max(before_pong, before_end) < len(far.output()) / 2


def test_host_sends_the_end_of_its_output_before_it_ends(start: Callable[..., Far]) -> None:
    far = start()
    pid = far.worker("print_much_at_gate")
    (far.directory / "gate").touch()
    while is_alive(pid):
        time.sleep(0.01)

    far.channel.send({"kind": "EndHost"})
    rest = [m for found in far.channel.serve(Bound(_WITHIN_S)) for m in found]

    far.wait_until_empty()
    lines = "".join(m["lines"] for m in rest if m["kind"] == "Output").splitlines()
    (gap,) = [line for line in lines if line.startswith("holdfast:")]
    assert len(lines) - 1 + int(gap.split()[1]) == 20_000
    assert lines[-1] == "1" * 79
    assert far.process.returncode == 0


@pytest.mark.timeout(120)
def test_loss_of_a_host_that_is_left_out_is_told_with_the_end_of_its_workers(
    tmp_path: Path,
) -> None:
    """Its agent still sends output then; the job may end before it."""
    last = json.dumps(to_message(WorkerExited(0, "told", generation=1)))
    program = f"read greeting; read make; read end; echo '{last}'; read end_of_job"
    lost: list[str] = []
    reactor, output = Reactor(), OutputForwarder(Streams().put, verbose=False)
    start = HostStart(["sh", "-c", program], Greeting("b", {}, "/", 60.0, (), "none:none"))
    host = RemoteHost(
        reactor, output, start, lambda *_: lost.append("worker"), lambda _, why: lost.append(why)
    )
    host.post(MakeWorkers(1, (0,)))

    host.dismiss("it does not reach c")
    while len(lost) < 2:
        reactor.run_once(1.0)
    host.close(_WITHIN_S)

    assert lost == ["worker", "it does not reach c"]
    output.close(1.0)
    reactor.close()


def test_host_ends_with_its_connection(start: Callable[..., Far]) -> None:
    far = start()
    pid = far.worker("wait")

    far.channel.close()

    far.wait_until_empty(pid)


def test_host_whose_answers_are_not_heard_ends_although_pings_come(
    start: Callable[..., Far],
) -> None:
    far = start(10.0)
    pid = far.worker("wait")

    deadline = time.monotonic() + _WITHIN_S
    while is_alive(pid):  # it may still hear the head, and is not heard itself
        assert time.monotonic() < deadline
        if far.process.poll() is None:
            try:
                far.ping(heard=0)
            except OSError:
                break
        time.sleep(0.1)

    far.wait_until_empty()


def test_writer_of_a_host_knows_the_end_of_its_lease(start: Callable[..., Far]) -> None:
    far = start()
    far.wait_for(lambda _: "holdfast-writer" in far.helpers())
    pid = far.helpers()["holdfast-writer"]
    *_, lease, _ = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
    fd = os.open(f"/proc/{pid}/fd/{lease}", os.O_RDWR)
    status = WorkerStatus(fd)
    before = status.lease_ms

    far.wait_for(lambda _: status.lease_ms > before)  # the head has heard an answer

    status.close()
    assert before > 1000 * (lease_clock_s() - _WITHIN_S)


def test_host_says_what_it_is_like_before_it_is_greeted(tmp_path: Path) -> None:
    (tmp_path / "lease").write_text("token")
    question = Question(tmp_path, None, tmp_path / "lease", "token", Path("/nowhere/mpiexec"))
    lines = [json.dumps(to_message(question)), '{"kind":"EndHost"}']

    ended = subprocess.run(
        python_there(), input="\n".join(lines), stdout=subprocess.PIPE, check=True, text=True
    )

    found = ANSWER.decode(json.loads(ended.stdout))
    assert isinstance(found, HostFacts)
    assert (found.has_cwd, found.has_token) == (True, True)
    assert found.versions == versions(question.mpiexec)


def test_stopped_agent_keeps_no_worker_and_does_not_stay_if_its_watchdog_was_killed_before(
    start: Callable[..., Far],
) -> None:
    far = start(3.0)
    pid = far.worker("wait")
    killed = far.helpers()["holdfast-watch"]

    os.kill(killed, signal.SIGKILL)
    far.wait_for(lambda _: far.helpers().get("holdfast-watch", killed) != killed)
    os.kill(far.process.pid, signal.SIGSTOP)

    far.wait_until_empty(pid)
    assert not is_alive(pid)
    assert far.process.returncode == -signal.SIGKILL


def test_shell_that_brings_no_greeting_is_left(tmp_path: Path) -> None:
    command = python_there()

    empty = subprocess.run(command, input=b"", capture_output=True, check=False, timeout=_WITHIN_S)
    wrong = subprocess.run(
        command, input=b"Welcome!\n", capture_output=True, check=False, timeout=_WITHIN_S
    )

    assert (empty.returncode, empty.stderr) == (0, b"")
    assert empty.stdout == wrong.stdout == b'{"kind":"Unasked"}\n'
    assert wrong.returncode == 1
    assert b"no greeting of a head" in wrong.stderr
