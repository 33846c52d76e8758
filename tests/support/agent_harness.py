"""A head in miniature: starts a real agent, decides for it, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from configs import worker_config

from holdfast.runtime.host import guard as guard_module
from holdfast.runtime.host.launchers import LaunchLine, find_mpiexec
from holdfast.runtime.system.channel import Channel, Message, connect
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.owned_directory import SOCKET_NAME
from holdfast.runtime.system.processes import kill_tree, wait_all_ended

GUARD = (sys.executable, "-I", "-S", str(Path(guard_module.__file__).resolve()))
BOUND_S = 90.0


class AgentHarness:
    """One agent, its output in files, and everything that it has told so far."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        entry: str = "tiny_worker:main",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.directory = directory
        self.events: list[Message] = []
        self.heartbeat_timeout_s = 5.0
        self._started: list[subprocess.Popen[bytes]] = []
        private = directory / "agent"
        private.mkdir(exist_ok=True)
        self.socket = private / SOCKET_NAME
        self.socket.unlink(missing_ok=True)  # a killed agent's, which still takes connections
        here = Path(__file__).parent / "processes"
        command = [sys.executable, str(here / "driven_agent.py")]
        command += ["--directory", str(private), "--entry", entry]
        if "--heartbeat-timeout" not in options:
            command += ["--heartbeat-timeout", str(self.heartbeat_timeout_s)]
        self.stdout = directory / "stdout"
        self.stderr = directory / "stderr"
        with self.stdout.open("wb") as stdout, self.stderr.open("wb") as stderr:
            self.process = subprocess.Popen(
                [*command, *options],
                env={**os.environ, "PYTHONPATH": str(here), **environment},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
            )
        self.channel = self._connect()
        self.send("test")

    def send(self, kind: str, **fields: Any) -> None:
        self.channel.send({"kind": kind, **fields})

    def launch(
        self, workers: Sequence[int], *argv: str, generation: int = 1, **fields: Any
    ) -> None:
        """Tell the agent of a launch whose tiny workers behave as ``argv`` says."""
        config = worker_config(
            workers[0],
            workers,
            run_dir=self.directory,
            run_id="test",
            generation=generation,
            microbatches=len(workers),
            seed=1,
            heartbeat_timeout_s=self.heartbeat_timeout_s,
            argv=argv,
        )
        self.events = [event for event in self.events if event["kind"] != "obeyed"]
        self.send("LaunchOrder", config=to_plain(config), **fields)
        self.wait_for("obeyed", order="LaunchOrder")  # guards come to a launch that is known

    def guard(
        self,
        rank: int,
        *,
        generation: int = 1,
        directory: Path | None = None,
        **environment: str,
    ) -> subprocess.Popen[bytes]:
        """Start one guard as mpiexec would, without MPI."""
        base = {**os.environ, **self._guard_environment(generation), **environment}
        base["OMPI_COMM_WORLD_RANK"] = str(rank)
        return self._start(GUARD, base, directory)

    def mpiexec(self, ranks: int, *, generation: int = 1) -> subprocess.Popen[bytes]:
        """Start a real MPI job of guards."""
        private = self.directory / f"launch-{generation}"
        private.mkdir()
        line = LaunchLine(find_mpiexec(), ranks, private, GUARD)
        guard_environment = self._guard_environment(generation)
        return self._start(line.command(), line.environment(os.environ, **guard_environment))

    def wait_for(self, kind: str, **expected: Any) -> Message:
        """Return the first event of ``kind`` with these fields, waiting for it."""

        def is_it(event: Message) -> bool:
            return bool(event["kind"] == kind) and expected.items() <= event.items()

        return self._first(is_it, f"{kind} {expected}")

    def wait_for_report(self, worker: int, kind: str) -> Message:
        """Return what ``worker`` said in its report of ``kind``."""

        def is_it(event: Message) -> bool:
            is_its = event["kind"] == "worker_report" and event["worker"] == worker
            return is_its and bool(event["report"]["kind"] == kind)

        return dict(self._first(is_it, f"report {kind} of worker {worker}")["report"])

    def _first(self, is_it: Callable[[Message], bool], awaited: str) -> Message:
        deadline, seen = time.monotonic() + BOUND_S, 0
        while True:
            for event in self.events[seen:]:
                seen += 1
                if is_it(event):
                    return event
            self._read_more(deadline, awaited)

    def go_on(self) -> None:
        """Let the agent go on for a while, until it has refused an order."""
        self.events = [event for event in self.events if event["kind"] != "refused"]
        self.send("Dance")
        self.wait_for("refused")

    def kinds(self, worker: int) -> list[str]:
        """Return what happened to a worker, in order."""
        return [
            event.get("report", event)["kind"]
            for event in self.events
            if event.get("worker") == worker
        ]

    def close(self) -> None:
        """End the agent and all started processes; nothing of theirs may be left."""
        if self.process.poll() is None:
            try:
                self.send("shutdown")
                self.process.wait(BOUND_S)
            except (OSError, subprocess.TimeoutExpired):
                kill_tree(self.process.pid)
        self.process.wait()
        for started in self._started:
            if started.poll() is None:
                kill_tree(started.pid)
            started.wait()
        self.channel.close()

    def _connect(self) -> Channel:
        deadline = time.monotonic() + BOUND_S
        while True:
            try:
                return connect(self.socket)
            except (FileNotFoundError, ConnectionRefusedError):
                assert self.process.poll() is None, self.stderr.read_text()
                assert time.monotonic() < deadline, "no agent"
                time.sleep(0.01)

    def _guard_environment(self, generation: int) -> dict[str, str]:
        return {
            "HOLDFAST_AGENT": str(self.socket),
            "HOLDFAST_GENERATION": str(generation),
        }

    def _start(
        self, command: Sequence[str], environment: dict[str, str], directory: Path | None = None
    ) -> subprocess.Popen[bytes]:
        output = (self.directory / f"started-{len(self._started)}").open("wb")
        with output:
            process = subprocess.Popen(
                command,
                env=environment,
                cwd=directory,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._started.append(process)
        return process

    def _read_more(self, deadline: float, awaited: str) -> None:
        ready: list[Channel] = []
        while not ready and time.monotonic() < deadline:
            ready = select.select([self.channel], [], [], 1.0)[0]
        story = "\n".join(map(str, [*self.events, self.stderr.read_text()]))
        assert ready, f"no {awaited} within {BOUND_S} s; so far:\n{story}"
        self.events += self.channel.drain()
        assert not self.channel.is_closed, f"the agent closed, no {awaited}; so far:\n{story}"


def agent_running(
    directory: Path, *options: str, **terms: Any
) -> AbstractContextManager[AgentHarness]:
    """Run an agent; end it and all started processes, also after a failed test."""
    return closing(AgentHarness(directory, *options, **terms))


def assert_ended(*pids: int) -> None:
    """Wait until processes are gone; it is a failure if they stay."""
    assert wait_all_ended(pids, BOUND_S) == ()


@contextmanager
def launcher_of(harness: AgentHarness, *, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that starts guards and waits for them, as mpiexec does."""
    script = (
        "import subprocess, sys, os\n"
        "guards = [subprocess.Popen(sys.argv[2:], env={**os.environ,"
        " 'OMPI_COMM_WORLD_RANK': str(rank)}) for rank in range(int(sys.argv[1]))]\n"
        "[guard.wait() for guard in guards]\n"
    )
    environment = {**os.environ, **harness._guard_environment(1)}
    command = [sys.executable, "-c", script, str(ranks), *GUARD]
    process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL)
    yield process
    process.kill()
    process.wait()
