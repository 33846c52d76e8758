"""Who is watched and who is fenced, with a clock of our own and processes that only sleep."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from configs import worker_config
from fake_host import MIB, FakeHost

from holdfast.checkpoint.shares import note_part
from holdfast.recovery.event import CheckpointCommitted, WorkerExited
from holdfast.recovery.saves import (
    CommitSave,
    SaveCommitted,
    SaveTicket,
    ShareWritten,
    WriteShare,
)
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.host import Host, LocalHost
from holdfast.runtime.host.host_messages import Lead, News
from holdfast.runtime.host.hosted_launch import HostedLaunch
from holdfast.runtime.host.hosted_worker import GuardHello, GuardLink
from holdfast.runtime.host.limits import HostLimits
from holdfast.runtime.host.output import OutputForwarder, Streams
from holdfast.runtime.host.pool_process import Forked, PoolSettings
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.events import HungUp, Notice, Pressure, WorkerFenced
from holdfast.runtime.run.journal import RecordedEvent, Records
from holdfast.runtime.saving.save_memory import Buffers, SaveMemory
from holdfast.runtime.saving.save_messages import AskMemory, PartCopied, PlanSaves, UseMemory
from holdfast.runtime.system.channel import FDS, Channel, Message, pair, to_message
from holdfast.runtime.system.own_process import Resource, Usage
from holdfast.runtime.system.processes import UNKILLABLE_AFTER_S
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.worker_status import Phase, RequestFlag, WorkerStatus

CONFIG = worker_config(0, (0, 1), run_id="run", microbatches=2, seed=1)


class FakePool:
    """A pool that keeps what was asked of it."""

    def __init__(
        self,
        reactor: Reactor,
        settings: PoolSettings,
        tell: Callable[[Forked], None],
        forward: object,
    ) -> None:
        self.tell = tell
        self.pages: dict[int, WorkerStatus] = {}
        self.controls: dict[int, Channel] = {}
        """The workers' ends of their channels."""
        self.abandoned: list[str] = []
        self.is_warm = True
        self.pid = os.getpid()

    def request(self, config: WorkerConfig, fds: Sequence[int]) -> None:
        self.pages[config.worker] = WorkerStatus(os.dup(fds[1]))
        if config.worker in self.controls:
            self.controls[config.worker].close()
        self.controls[config.worker] = Channel.adopt(os.dup(fds[0]))

    def poll(self, now: float) -> None: ...

    def abandon(self, why: str) -> None:
        self.abandoned.append(why)

    def close(self) -> None:
        for page in self.pages.values():
            page.close()
        for control in self.controls.values():
            control.close()


class FakeWriter:
    """A writer that keeps what it was given, and answers when the test does."""

    def __init__(
        self,
        reactor: Reactor,
        tell: Callable[[object], None],
        memory: SaveMemory,
        *,
        on_files: object,
        lease_fd: int | None,
    ) -> None:
        self.tell = tell
        self.told: list[object] = []
        self.replaced: list[str] = []
        self.pid = None

    def start(self) -> None: ...

    def use(self, buffers: Buffers) -> None:
        self.told.append((buffers.memory, len(buffers.fds)))

    def plan(self, message: object) -> None:
        self.told.append(message)

    work = plan

    def hurry(self) -> None: ...

    def replace(self, why: str) -> None:
        self.replaced.append(why)

    def poll(self, now: float) -> None: ...

    def close(self) -> None: ...


class Watched:
    """A host whose time, beats and guards are in the test's hands."""

    def __init__(self, root: Path) -> None:
        self.events: list[News] = []
        self.shared = FakeHost.file_system(0, 100 * MIB)
        self.reactor = Reactor()
        self.streams = Streams()
        self.output = OutputForwarder(self.streams.put, verbose=True)
        own = LocalHost()
        self.launch = own.launch = HostedLaunch(
            self.reactor, self.events.append, [own], heartbeat_timeout_s=1.0
        )
        self.real = own.host = Host(
            *(self.reactor, self.output, own.tell),
            heartbeat_timeout_s=1.0,
            pool=PoolSettings((), "none:none"),
            limits=HostLimits(root / "shm", root, lambda _: self.shared),
        )
        self.pool: FakePool = self.real.pool  # type: ignore[assignment]
        self.pages = self.pool.pages
        self.guards: list[Channel] = []
        self.now = 1000.0
        self.launch.begin(CONFIG)
        self._processes: list[subprocess.Popen[bytes]] = []

    def fork(self, worker: int) -> None:
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        self._processes.append(process)
        self.pool.tell(Forked(1, WorkerId(worker), process.pid))

    def guard(self, rank: int) -> None:
        ours, theirs = pair()
        self.guards.append(theirs)
        self.launch.take_guard(GuardLink(ours, None), GuardHello(rank, 1, "/", {}))

    def guard_both(self, phase: Phase) -> None:
        for worker in (0, 1):
            self.guard(worker)
            self.pages[worker].phase = phase

    def pass_time(self, seconds: float, *beating: int) -> None:
        """Look four times a second while the given workers beat."""
        for _ in range(int(4 * seconds)):
            self.now += 0.25
            for worker in beating:
                self.pages[worker].beat()
            self.poll()

    def poll(self) -> None:
        self.real.poll(self.now)
        self.launch.poll(self.now)

    @property
    def writer(self) -> FakeWriter:
        writer: FakeWriter = self.real.writer  # type: ignore[attr-defined]
        return writer

    def end(self, worker: int) -> None:
        """Let a worker die, and its end be seen."""
        self._processes[worker].kill()
        while worker in [hosted.worker for hosted in self.launch.workers]:
            self.reactor.run_once(10.0)

    def control(self, worker: int) -> Channel:
        """The worker's end of its channel to the agent."""
        return self.pool.controls[worker]

    def ask(self, worker: int, question: Message) -> Message:
        """Ask the agent as a worker does, and return its answer."""
        self.control(worker).send(question)
        answers: list[Message] = []
        while not answers:
            self.reactor.run_once(10.0)
            answers = self.control(worker).drain()
        return answers[0]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]

    def of_kind(self, kind: type[WorkerExited | WorkerFenced]) -> list[int]:
        return [event.worker for event in self.events if isinstance(event, kind)]

    def close(self) -> None:
        self.launch.close()
        self.real.close()
        self.reactor.close()
        self.output.close(10.0)
        self.streams.close(10.0)
        for process in self._processes:
            process.kill()
            process.wait()
        for guard in self.guards:
            guard.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr("holdfast.runtime.host.host.WarmPool", FakePool)
    monkeypatch.setattr("holdfast.runtime.host.host.WriterLink", FakeWriter)
    host = Watched(tmp_path)
    host.fork(0)
    host.fork(1)
    yield host
    host.close()


def test_workers_may_wait_for_their_launch_as_long_as_it_takes(host: Watched) -> None:
    host.pass_time(600)

    assert host.events == []


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.JOINING, None])
def test_start_may_take_a_minute_also_of_a_guard_that_never_comes(
    host: Watched, phase: Phase | None
) -> None:
    """The other ranks would wait for it inside ``MPI_Init`` for ever."""
    if phase is None:
        host.guard(0)
    else:
        host.guard_both(phase)

    host.pass_time(59, 0)
    assert host.of_kind(WorkerFenced) == []
    host.pass_time(3, 0)

    assert host.of_kind(WorkerFenced) == [1]


def test_lines_of_the_first_worker_alone_are_shown(host: Watched) -> None:
    host.real.take(Lead(WorkerId(2)))

    assert host.output.speaker == 2


def test_memory_that_is_nearly_full_is_told_and_saved_before(host: Watched) -> None:
    host.shared = FakeHost.file_system(95 * MIB, 100 * MIB)

    host.poll()

    assert [event.resource for event in host.events if isinstance(event, Pressure)] == [
        "shared memory"
    ]
    assert [page.requests for page in host.pages.values()] == [RequestFlag.SAVE] * 2


QUESTION = to_message(AskMemory("L", 2**21, 2**20))
TICKET = SaveTicket(1, 1, 30, 4)
PLAN = PlanSaves(1, "L", "{}", 0, 1)


def test_all_workers_have_the_same_memory_and_the_writer_is_told_it_once(host: Watched) -> None:
    found = [host.ask(worker, QUESTION) for worker in (0, 1)]

    inodes = [[os.fstat(fd).st_ino for fd in answer[FDS]] for answer in found]
    for fd in (*found[0][FDS], *found[1][FDS]):
        os.close(fd)
    assert inodes[0] == inodes[1]
    assert len(set(inodes[0])) == 2
    assert host.writer.told == [(UseMemory(1, "L"), 2)]
    assert host.notices == []


def test_want_of_memory_is_told_once(host: Watched) -> None:
    full = [Usage(Resource.MEMORY, "the host", 2**24, 2**24 + 2**19)]
    host.real._memory = SaveMemory(lambda: full)

    answers = [host.ask(worker, QUESTION) for worker in (0, 1)]

    assert [answer.get(FDS, []) for answer in answers] == [[], []]
    (notice,) = host.notices
    assert notice.startswith("two snapshots of 1.0 MiB do not fit: the host has 512 KiB left; ")


def test_save_that_the_last_words_of_a_worker_complete_is_durable_before_the_last_end(
    host: Watched,
) -> None:
    """Both may die right after they have copied their parts."""
    (fd, other) = host.ask(0, QUESTION)[FDS]
    with mmap.mmap(fd, 2**21) as memory:
        for part in (0, 1):
            note_part(memoryview(memory), part, 2, TICKET.key, "ab" * 16)
    for each in (fd, other):
        os.close(each)
    host.control(0).send(to_message(PLAN))
    host.control(0).send(to_message(PartCopied(TICKET, 0, 1.0, "{}")))
    host.end(0)
    assert host.writer.told[1:] == [PLAN, WriteShare(TICKET, 0, "")]

    host.end(1)
    host.writer.tell(ShareWritten(TICKET, 0, ("rows",)))
    commit = host.writer.told[-1]
    assert isinstance(commit, CommitSave)
    assert (commit.records, commit.cursor) == ((("rows",),), "{}")
    assert host.of_kind(WorkerExited) == [0]
    host.writer.tell(SaveCommitted(TICKET))

    assert host.events[-2] == CheckpointCommitted(WorkerId(1), 30)
    assert host.of_kind(WorkerExited) == [0, 1]


def test_killed_worker_that_does_not_end_is_written_off(
    host: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL does nothing to a process that hangs in the kernel."""
    for rank in (0, 1):
        host.guard(rank)
    monkeypatch.setattr("holdfast.runtime.host.worker_process.kill_group", lambda pid: None)

    host.launch.kill_all("killed with its launch")
    host.pass_time(UNKILLABLE_AFTER_S)
    assert host.of_kind(WorkerExited) == []
    host.pass_time(1)

    assert host.of_kind(WorkerExited) == [0, 1]
    end = host.events[-1]
    assert isinstance(end, WorkerExited)
    cause = end.cause
    assert cause.startswith("killed with its launch; process ")
    assert cause.endswith(" does not end")
    assert host.launch.is_idle


def test_launch_that_is_abandoned_is_over_although_its_processes_hang(
    host: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.guard_both(Phase.TRAINING)
    monkeypatch.setattr("holdfast.runtime.host.worker_process.kill_group", lambda pid: None)

    host.launch.abandon("it does not end")

    assert host.of_kind(WorkerExited) == [0, 1]
    assert host.launch.is_idle
    assert host.writer.replaced == ["it does not end"]
    assert host.pool.abandoned == ["it does not end"]


def test_records_are_passed_on_with_the_name_of_their_process(host: Watched) -> None:
    records = Records((RecordedEvent.of(HungUp()),))

    host.control(1).send(to_message(records))
    while not host.events:
        host.reactor.run_once(10.0)
    host.writer.tell(records)

    assert host.events == [
        replace(records, source="worker 1"),
        replace(records, source="snapshot writer"),
    ]


def test_worker_that_no_descriptor_is_left_for_is_given_up(
    host: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.end(1)

    def refuse(pid: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    host.launch.begin(replace(CONFIG, generation=2, workers=(WorkerId(2), WorkerId(3))))
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    monkeypatch.setattr(os, "pidfd_open", refuse)
    host.pool.tell(Forked(2, WorkerId(3), process.pid))
    monkeypatch.undo()

    exited = host.events[-1]
    assert isinstance(exited, WorkerExited)
    assert (exited.worker, exited.generation) == (3, 2)
    assert exited.cause == "not started: it cannot be watched: [Errno 24] Too many open files"
    assert process.wait() == -signal.SIGKILL
