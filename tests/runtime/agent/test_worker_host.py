"""Who is watched and who is fenced, with a clock of our own and processes that only sleep."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from configs import worker_config

from holdfast.runtime.agent.guard_link import GuardLink
from holdfast.runtime.agent.hosted_worker import GuardHello, HostedLaunch
from holdfast.runtime.agent.output import OutputForwarder
from holdfast.runtime.agent.pool_process import PoolSettings
from holdfast.runtime.agent.warm_pool import ForkRequest
from holdfast.runtime.agent.worker_host import WorkerHost
from holdfast.runtime.system.channel import Channel, Message, pair
from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase
from holdfast.runtime.system.processes import UNKILLABLE_AFTER_S
from holdfast.runtime.system.reactor import Reactor

CONFIG = worker_config(0, (0, 1), run_id="run", microbatches=2, seed=1)
LAUNCH = HostedLaunch(CONFIG, {})


class FakePool:
    """A pool that keeps what was asked of it."""

    def __init__(self, reactor: Reactor, settings: PoolSettings, owner: WorkerHost) -> None:
        self.pages: dict[int, HeartbeatPage] = {}
        self.is_warm = True
        self.pid = os.getpid()

    def request(self, request: ForkRequest) -> None:
        self.pages[request.worker] = HeartbeatPage(os.dup(request.fds[1]))

    def look(self, now: float) -> None: ...

    def close(self) -> None:
        for page in self.pages.values():
            page.close()


class FakeWriter:
    """A writer that keeps what it was given, and settles when it is told to."""

    def __init__(self, reactor: Reactor, owner: WorkerHost) -> None:
        self.memories: list[Message] = []
        self.waiting: list[Callable[[Message], None]] = []
        self.pid = None

    @property
    def is_settling(self) -> bool:
        return bool(self.waiting)

    def start(self) -> None: ...

    def use(self, memory: Message, fds: Sequence[int]) -> None:
        self.memories.append(memory)

    def settle(self, then: Callable[[Message], None], *, is_urgent: bool) -> None:
        self.waiting.append(then)

    def settled(self, step: int | None) -> None:
        self.waiting.pop()({"kind": "settled", "step": step})

    def look(self, now: float) -> None: ...

    def close(self) -> None: ...


class Host:
    """A host whose time, beats and guards are in the test's hands."""

    def __init__(self) -> None:
        self.events: list[Message] = []
        self.reactor = Reactor()
        self.output = OutputForwarder(verbose=True)
        self.real = WorkerHost(
            self.reactor,
            self.output,
            self.events.append,
            heartbeat_timeout_s=1.0,
            pool=PoolSettings((), "none:none"),
        )
        self.pages: dict[int, HeartbeatPage] = self.real.pool.pages  # type: ignore[attr-defined]
        self.guards: list[Channel] = []
        self.now = 1000.0
        self.real.begin(LAUNCH)
        self._processes: list[subprocess.Popen[bytes]] = []

    def fork(self, worker: int) -> None:
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._processes.append(process)
        self.real.on_forked(1, worker, process.pid)

    def ask(self, worker: int, question: Message) -> list[int]:
        """Ask for memory as a worker does; return the inodes of the buffers that come."""
        found: list[int] = []
        hosted = self.real.workers[worker]
        hosted.answer = lambda message, fds=(): found.extend(  # type: ignore[method-assign]
            os.fstat(fd).st_ino for fd in fds
        )
        self.real._on_report(hosted, question)
        return found

    def guard(self, rank: int) -> None:
        ours, theirs = pair()
        self.guards.append(theirs)
        self.real.take_guard(GuardLink(ours, None), GuardHello(rank, 1, "/", {}))

    def pass_time(self, seconds: float, *beating: int) -> None:
        """Look four times a second while the given workers beat."""
        for _ in range(int(4 * seconds)):
            self.now += 0.25
            for worker in beating:
                self.pages[worker].beat()
            self.real.look(self.now)

    @property
    def writer(self) -> FakeWriter:
        writer: FakeWriter = self.real.writer  # type: ignore[attr-defined]
        return writer

    def end(self, worker: int) -> None:
        """Let a worker die, and its end be seen."""
        self._processes[worker].kill()
        while ("worker_exited", worker) not in self.ends and not self.writer.is_settling:
            self.reactor.run_once(10.0)

    @property
    def ends(self) -> list[tuple[str, int]]:
        return [(event["kind"], event["worker"]) for event in self.events if "worker" in event]

    def of_kind(self, kind: str) -> list[Any]:
        return [event["worker"] for event in self.events if event["kind"] == kind]

    def close(self) -> None:
        self.real.close()
        self.reactor.close()
        self.output.close(10.0)
        for process in self._processes:
            process.kill()
            process.wait()
        for guard in self.guards:
            guard.close()


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setattr("holdfast.runtime.agent.worker_host.WarmPool", FakePool)
    monkeypatch.setattr("holdfast.runtime.agent.worker_host.WriterLink", FakeWriter)
    host = Host()
    host.fork(0)
    host.fork(1)
    yield host
    host.close()


def test_workers_may_wait_for_their_launch_as_long_as_it_takes(host: Host) -> None:
    host.pass_time(600)

    assert host.events == []


def test_worker_begins_when_it_has_process_and_guard(host: Host) -> None:
    host.guard(1)

    assert host.of_kind("worker_started") == [1]


def test_silent_worker_in_training_is_fenced_after_the_timeout(host: Host) -> None:
    for worker in (0, 1):
        host.guard(worker)
        host.pages[worker].phase = Phase.TRAINING

    host.pass_time(1, 0)
    assert host.of_kind("worker_fenced") == []
    host.pass_time(1, 0)

    assert host.of_kind("worker_fenced") == [1]


def test_silent_worker_is_fenced_once(host: Host) -> None:
    for worker in (0, 1):
        host.guard(worker)
        host.pages[worker].phase = Phase.TRAINING

    host.pass_time(10, 0)

    assert host.of_kind("worker_fenced") == [1]


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.JOINING])
def test_start_may_take_a_minute(host: Host, phase: Phase) -> None:
    for worker in (0, 1):
        host.guard(worker)
        host.pages[worker].phase = phase

    host.pass_time(59, 0)
    assert host.of_kind("worker_fenced") == []
    host.pass_time(3, 0)

    assert host.of_kind("worker_fenced") == [1]


def test_worker_whose_guard_never_comes_is_given_up(host: Host) -> None:
    """The other ranks would wait for it inside ``MPI_Init`` for ever."""
    host.guard(0)

    host.pass_time(62, 0)

    assert host.of_kind("worker_fenced") == [1]


def test_agent_that_was_away_accuses_nobody(host: Host) -> None:
    for worker in (0, 1):
        host.guard(worker)
        host.pages[worker].phase = Phase.TRAINING
    host.pass_time(1, 0, 1)

    host.now += 3600.0
    host.real.look(host.now)

    assert host.of_kind("worker_fenced") == []


def test_end_of_the_last_worker_is_told_once_its_snapshots_are_settled(host: Host) -> None:
    """A relaunch begins with that event, and must find on the disk what memory held."""
    host.end(0)
    assert host.of_kind("worker_exited") == [0]

    host.end(1)
    assert host.of_kind("worker_exited") == [0]
    assert not host.real.is_idle

    host.writer.settled(30)
    assert host.of_kind("worker_exited") == [0, 1]
    assert [event["report"] for event in host.events if event["kind"] == "worker_report"] == [
        {"kind": "checkpoint", "step": 30}
    ]
    assert host.real.is_idle


def test_answers_of_the_writer_reach_all_pages_and_failures_everyone(host: Host) -> None:
    def answer(kind: str, attempt: int, **fields: object) -> None:
        names = {"kind": kind, "launch": 1, "attempt": attempt, "step": 30}
        host.real.on_written({**names, "reason": "the disk is full", **fields})

    answer("saved", 4)
    assert [(page.is_answered(4), page.failed_save) for page in host.pages.values()] == [
        (True, 0),
        (True, 0),
    ]
    answer("unsaved", 5)
    answer("unsaved", 6, is_expected=True)
    answer("saved", 7, launch=99)

    assert [page.failed_save for page in host.pages.values()] == [6, 6]
    assert not any(page.is_answered(7) for page in host.pages.values())
    (notice,) = [event["report"]["text"] for event in host.events if "report" in event]
    assert notice == "the checkpoint of step 30 failed: the disk is full"


def test_all_workers_get_the_same_memory_and_the_writer_hears_of_it_once(host: Host) -> None:
    question = {"kind": "memory", "layout": "l", "size": 9000, "bytes": 5000, "file_bytes": 5000}

    inodes = [host.ask(worker, question) for worker in (0, 1)]

    assert inodes[0] == inodes[1]
    assert len(set(inodes[0])) == 2
    assert host.writer.memories == [{**question, "launch": 1}]


def test_sentences_of_the_writer_reach_the_user(host: Host) -> None:
    host.real.on_writer_notice({"kind": "notice", "text": "step 3 was mended"})

    assert [event["report"]["text"] for event in host.events] == ["step 3 was mended"]


def test_killed_worker_that_does_not_end_is_written_off(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL does nothing to a process that hangs in the kernel."""
    for rank in (0, 1):
        host.guard(rank)
    monkeypatch.setattr("holdfast.runtime.agent.hosted_worker.kill_group", lambda pid: None)

    host.real.kill_all("killed by the supervisor")
    host.pass_time(UNKILLABLE_AFTER_S)
    assert host.of_kind("worker_exited") == []
    host.pass_time(1)

    assert host.of_kind("worker_exited") == [0]
    host.writer.settled(None)
    assert host.of_kind("worker_exited") == [0, 1]
    cause = host.events[-1]["cause"]
    assert cause.startswith("killed by the supervisor; process ")
    assert cause.endswith(" does not end")
    assert host.real.is_idle


def test_worker_that_no_descriptor_is_left_for_is_given_up(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.end(1)

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    host.real.begin(replace(LAUNCH, config=replace(LAUNCH.config, generation=2)))
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    host.real.on_forked(2, 1, process.pid)
    monkeypatch.undo()

    exited = host.events[-1]
    assert (exited["kind"], exited["worker"], exited["generation"]) == ("worker_exited", 1, 2)
    assert exited["cause"] == "not started: it cannot be watched: [Errno 24] Too many open files"
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    process.returncode = -signal.SIGKILL  # the host has waited for it
