"""Hosts that save together, whose workers and writers die or hang, and whose messages come late.

Workers are played by dice.  The head's part of saves, each agent's link and memory, the writers and
the file system are real.  A writer is a thread instead of a process: when it is killed, every
further call of it fails.  One that hangs does its last call when the dice say so.  Each piece of
work is over before the next thing happens, so a seed is one order of events.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from host_saves import Workers, plan_of, saved_steps, verify
from simulation import PromptExecutor

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.retention import FEWEST_KEPT
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.event import CheckpointCommitted, WorkerExited
from holdfast.recovery.saves import PartHeld, SaveTicket
from holdfast.recovery.world import WorkerId
from holdfast.runtime.host.launch_saves import FailedSaves, LaunchSaves
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Records
from holdfast.runtime.saving import writer_link
from holdfast.runtime.saving.save_memory import SaveMemory
from holdfast.runtime.saving.save_messages import (
    Hurry,
    PartCopied,
    PlanSaves,
    UseMemory,
    WriterAnswer,
)
from holdfast.runtime.saving.writer import HostWriter
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import Channel, Message
from holdfast.runtime.system.worker_status import WorkerStatus

_CHANGES = frozenset(
    {"mkdir", "create_exclusive", "write", "fsync", "fsync_directory", "rename_noreplace"}
    | {"unlink", "rmdir"}
)
_HANGS = {"kind": "hangs"}
"""What a thread says in place of a process that says nothing."""


class _Died(BaseException):
    """The writer's process is no more."""


class _Files:
    """The file system as one writer sees it: it dies or hangs at a call, or the disk is full."""

    def __init__(self, simulation: HostSimulation, hang: Callable[[], None]) -> None:
        self._plain = FileSystem(simulation.run_dir)
        self._simulation = simulation
        self._hang = hang
        self.left: int | None = None
        """So many changes are made before the end."""
        self.ends_by_hanging = self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._plain, name)
        return self._mortal(name, call) if name in _CHANGES else call

    def _mortal(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            if self.is_dead:
                raise _Died
            if self.left is not None:
                self.left -= 1
                if self.left <= 0:
                    self._end()
            number = self._simulation.refuses
            if number and name in ("create_exclusive", "mkdir"):
                raise OSError(number, os.strerror(number))
            return None if name.startswith("fsync") else call(*arguments)

        return change

    def _end(self) -> None:
        self.is_dead = True
        if not self.ends_by_hanging:
            raise _Died
        self._hang()  # its last call is made after this


class _Process:
    """A writer in a thread, as far as its agent handles a process."""

    pid = 1

    def __init__(self, simulation: HostSimulation, channel: Channel, *, commits: bool) -> None:
        self.files = _Files(simulation, self._hang)
        self.goes_on = threading.Event()
        """Whether the disk has answered at last."""
        self._channel = channel
        self._commits = commits
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def kill(self) -> None:
        self.files.is_dead = True

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, within_s: float) -> int:
        self.goes_on.set()
        self._thread.join(within_s)
        return 0

    def _hang(self) -> None:
        self._channel.send(_HANGS)
        self.goes_on.wait()

    def _run(self) -> None:
        files: Any = self.files
        try:
            HostWriter(self._channel, commits=self._commits, files=files).run()
        except _Died:
            pass
        finally:
            self._channel.close()


class _Reactor:
    """Watches the connection to the newest writer."""

    watched: tuple[Channel, Callable[[Message], None], Callable[[], None]] | None = None

    def watch_channel(
        self, channel: Channel, on_message: Callable[[Message], None], on_end: Callable[[], None]
    ) -> None:
        self.watched = channel, on_message, on_end

    def forget(self, channel: Channel) -> None:
        self.watched = None


class _Host:
    """A host of the job, and what is on its way from and to it."""

    unheard_s = leased_s = 0.0

    def __init__(self, simulation: HostSimulation, name: str) -> None:
        self.name = name
        self.parts = 0
        """How many workers live here."""
        self.workers: Workers | None = None
        """Those that save, None if there are none."""
        self.memory = SaveMemory(lambda: ())
        self.outboxes: list[deque[PlanSaves | PartCopied]] = []
        """What each worker has told its agent, also those that are dead."""
        self.up: deque[Any] = deque()
        self.down: deque[Any] = deque()
        self.begun: dict[tuple[UseMemory, int], SaveTicket] = {}
        """The newest save of which a byte was copied into each buffer."""
        self.whole: set[SaveTicket] = set()
        """Those of which all parts were copied."""
        self._simulation = simulation
        self._reactor = cast(Any, _Reactor())
        files = (lambda channel: channel.close()) if name == "head" else None
        self.link = WriterLink(
            self._reactor, self._take, self.memory, clock=lambda: 0.0, on_files=files
        )
        self._answered = 0
        self._maps: list[Workers] = []

    def post(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send the host a message of the head."""
        self.down.append(message)

    def status_of(self, generation: int, worker: WorkerId) -> WorkerStatus:
        """Have none: the simulation takes the answers."""
        raise NotImplementedError

    def begin_world(self, workers: Workers, told: PlanSaves) -> None:
        """Give workers the memory of the world; the first one tells its plan."""
        if workers.is_new:
            self.link.use(workers.given)
        self._maps.append(workers)
        self.workers = workers
        while len(self.outboxes) < self.parts:
            self.outboxes.append(deque())
        self.outboxes[0].append(told)

    def holds(self, ticket: SaveTicket) -> bool:
        """Return whether all of its part of a save is in memory that the agent still has."""
        kept = {found.memory for found in self.memory.kept}
        held = {save for (memory, _), save in self.begun.items() if memory in kept}
        return ticket in held & self.whole

    def hear_worker(self, number: int) -> None:
        """Let the agent hear the next message of a worker."""
        match told := self.outboxes[number].popleft():
            case PartCopied():
                held = self.memory.take_part(told)
                if held is not None:
                    self.up.append(held)
            case PlanSaves():
                self.memory.plan(self._simulation.launch_number, told)
                self.link.plan(told)
                if told.share == 0:
                    self.up.append(told)

    def obey(self) -> None:
        """Let the agent do what the head has said next, and its writer end that work."""
        match message := self.down.popleft():
            case PlanSaves():
                self.link.plan(message)
            case Hurry():
                self.link.hurry()
            case _:
                due = self._answered + 1
                self.link.work(message)
                while self._answered < due:
                    self._hear_writer()

    def close(self) -> None:
        """End the writer, and give the memory back."""
        self.link.close()
        for workers in self._maps:
            workers.close()
        self.memory.close()

    def _hear_writer(self) -> None:
        channel, on_message, on_end = self._reactor.watched
        message = channel.receive()
        if message is None:
            on_end()
        elif message == _HANGS:
            self.link.poll(1e9)
        elif message.get("ticket") and self._simulation.dice.random() < 0.03:
            self._simulation.is_sound = False
            self.link.replace("killed")  # it has done its work, and nobody hears that
        else:
            on_message(message)

    def _take(self, told: WriterAnswer | Notice | Records) -> None:
        if not isinstance(told, Notice | Records):
            self._answered += 1
            self.up.append(told)


class HostSimulation:
    """The hosts, and what must hold of them at any time (`check`) and when all is over (`end`)."""

    def __init__(self, run_dir: Path, patch: pytest.MonkeyPatch, seed: int) -> None:
        self.dice = random.Random(seed)
        self.run_dir = run_dir
        self.refuses = 0
        """The error number of each new file, 0 if the disk takes it."""
        self.is_sound = True
        """Whether disks and writers are as they should be, while the last saves are settled."""
        self.processes: list[_Process] = []
        self.answers: Counter[tuple[int, int]] = Counter()
        self.saved: set[int] = set()
        """The steps that were answered as durable."""
        self.launch_number = self.generation = self._answered = 0
        self._shards = self.dice.choice([1, 2, 3, 5])
        self._buffers = self.dice.choice([1, 2, 2])
        self._verified: set[int] = set()
        self._may_be_pruned = False
        self._ended: list[object] = []
        self._lost: list[_Host] = []
        self.hosts: list[_Host] = []
        self._patch(patch)
        self.launch()

    # what the head's part of saves sees of the workers

    @property
    def page(self) -> HostSimulation:
        """The status of all workers."""
        return self

    def answer_save(self, attempt: int, *, is_durable: bool) -> None:
        """Take note of an answer, as a worker sees it."""
        self.answers[self.launch_number, attempt] += 1
        self._answered = max(self._answered, attempt)
        if is_durable:
            self.saved.add(self._steps[attempt])

    # what happens

    def launch(self) -> None:
        """Begin with new workers on the hosts, and on another one or none."""
        if not self.hosts:
            self.hosts = [_Host(self, "head")]
        while len(self.hosts) < self.dice.choice([1, 2, 3, 4]):
            self.hosts.append(_Host(self, f"host {self.generation}.{len(self.hosts)}"))
        self.generation += 1
        self.launch_number = self.generation
        self._plan = plan_of(self.run_dir, self._shards, generation=self.launch_number)
        self._saves = LaunchSaves(
            self.launch_number,
            self._ended.append,
            lambda: list(self.hosts),
            lambda: [SimpleNamespace(generation=self.launch_number, page=self)],  # type: ignore[list-item]
            FailedSaves(),
        )
        self._step = max(self._visible(), default=0)
        self._attempt = self._answered = self._flight = 0
        self._steps: dict[int, int] = {}
        self._told: dict[SaveTicket, dict[int, tuple[_Host, PartHeld]]] = {}
        """The parts of which the head has heard, by share."""
        for host in self.hosts:
            host.outboxes.clear()
            host.parts = self.dice.randrange(1, 4)
        self._begin_world()

    def begin(self) -> None:
        """Copy a save, unless one is in flight or its buffer is not free."""
        attempt = self._attempt + 1 + (self._answered > 0 and self.dice.random() < 0.5)
        if max(self._flight, attempt - self._buffers) > self._answered:
            return
        self._attempt = self._flight = attempt
        self._step += 10 * self.dice.randrange(1, 3)
        self._steps[attempt] = self._step
        is_odd = self.dice.random() < 0.05
        dying: list[_Host] = []
        for host in self._savers:
            assert host.workers is not None
            ticket = host.workers.ticket(self._step, attempt, self.generation)
            host.begun[host.workers.given.memory, attempt % self._buffers] = ticket
            for part in range(host.parts):
                if self.dice.random() < 0.02:
                    host.workers.begin_copy(ticket, part, host.parts)
                    dying.append(host)
                else:
                    digest = "0d" * 16 if is_odd and not part else ""
                    copied = host.workers.copy(ticket, part, host.parts, digest)
                    host.outboxes[part].append(copied)
            if host not in dying:
                host.whole.add(ticket)
        for host in dying:
            self._lose_worker(host)

    def deliver(self) -> None:
        """Let somebody hear the next message, and do what follows."""
        ways: list[Callable[[], None]] = []
        for host in self.hosts:
            found = [number for number, box in enumerate(host.outboxes) if box]
            ways += [lambda h=host, n=number: h.hear_worker(n) for number in found]  # type: ignore[misc]
            ways += [host.obey] * bool(host.down)
            ways += [lambda h=host: self._hear(h)] * bool(host.up)  # type: ignore[misc]
        if ways:
            self.dice.choice(ways)()

    def act(self) -> None:
        """Let something happen, and look whether all is well."""
        actions: list[tuple[int, Callable[[], object]]] = [
            (6, self.begin),
            (40, self.deliver),
            (1, lambda: self._lose_worker(self.dice.choice(self._savers))),
            (1, self._lose_host),
            (1, self._lose_all),
            (1, self._replace_a_writer),
            (2, self._doom_a_writer),
            (1, self._let_go_on),
            (1, self._turn_the_disk),
        ]
        weights, calls = zip(*actions, strict=True)
        self.dice.choices(calls, weights)[0]()
        self.check()

    def check(self) -> None:
        """Fail unless every step is what it should be, and no saved one is missing."""
        visible = self._visible()
        for step in set(visible) - self._verified:
            verify(CheckpointStore(self.run_dir), step)
            self._verified.add(step)
        oldest = min(visible[:FEWEST_KEPT], default=0) if self._may_be_pruned else 0
        gone = [step for step in self.saved if step not in visible and step >= oldest]
        assert not gone, "steps that were saved are gone"
        assert set(self.answers.values()) <= {1}, "a save was answered twice"

    def end(self) -> None:
        """Let all messages arrive, and all workers die; then nothing complete may be lost."""
        self._heal()
        while self._is_busy:
            self.deliver()
        flight = [t for t in self._told if t.attempt == self._flight]
        if any(len(self._told[ticket]) == ticket.hosts for ticket in flight):
            assert self.answers[self.launch_number, self._flight] == 1, "nobody was told"
        self._lose_all()
        self.check()
        assert set(saved_steps(self.run_dir)) == set(self._visible())

    def close(self) -> None:
        """End the writers, and give the memory back."""
        for process in self.processes:
            process.goes_on.set()
        for host in (*self.hosts, *self._lost):
            host.close()

    @property
    def _savers(self) -> list[_Host]:
        return [host for host in self.hosts if host.parts]

    @property
    def _is_busy(self) -> bool:
        return any(host.up or host.down or any(host.outboxes) for host in self.hosts)

    def _visible(self) -> tuple[int, ...]:
        return CheckpointStore(self.run_dir).steps()

    def _begin_world(self) -> None:
        """Let the workers that live save together; the first one of each host tells the plan."""
        self._flight = 0
        savers = self._savers
        for share, host in enumerate(savers):
            workers = Workers(
                self._plan,
                self._buffers,
                self.launch_number,
                share=share,
                hosts=len(savers),
                memory=host.memory,
            )
            host.begin_world(workers, workers.plan_message(self.generation))

    def _hear(self, host: _Host) -> None:
        """Let the head hear the next message of a host."""
        match told := host.up.popleft():
            case PlanSaves():
                self._saves.plan(host, told)
            case _:
                if isinstance(told, PartHeld) and told.ticket.launch == self.launch_number:
                    self._told.setdefault(told.ticket, {})[told.share] = host, told
                self._saves.hear(host, told)

    def _lose_worker(self, host: _Host) -> None:
        """A worker dies; what it had sent may still be heard, and late."""
        if sum(saver.parts for saver in self._savers) == 1 or not host.parts:
            return
        lost = host.outboxes.pop(self.dice.randrange(host.parts))
        host.parts -= 1
        if self.dice.random() < 0.5:
            host.outboxes.append(lost)
        self.generation += 1
        self._begin_world()

    def _lose_host(self) -> None:
        """A host is lost, with what it holds and what is on its way from it."""
        others = [host for host in self.hosts[1:] if self._savers != [host]]
        if not others:
            return
        host = self.dice.choice(others)
        self.hosts.remove(host)
        self._lost.append(host)
        host.link.replace("lost")
        self._saves.lose_host(host)
        self.generation += 1
        self._begin_world()

    def _lose_all(self) -> None:
        """All workers die, and what is in memory is written; then comes another launch."""
        for host in self.hosts:
            for number, outbox in enumerate(host.outboxes):
                while outbox and self.dice.random() < 0.8:
                    host.hear_worker(number)
                outbox.clear()
        if self.dice.random() < 0.7:
            self._heal()
        if self.dice.random() < 0.3:
            self._lose_host()
        for host in self.hosts:
            host.parts = 0
            while host.up:
                self._hear(host)
        files = [process.files for process in self.processes]
        self.is_sound = not self.refuses and all(f.left is None or f.is_dead for f in files)
        complete = [ticket for ticket in self._told if self._is_complete(ticket)]
        end = WorkerExited(WorkerId(0), "killed")
        self._saves.settle(end, is_urgent=False)
        while end not in self._ended:
            assert self._is_busy, "nobody settles any more"
            self.deliver()
            if self.dice.random() < 0.01:
                self.is_sound = False
                self._lose_host()
        steps = [told.step for told in self._ended if isinstance(told, CheckpointCommitted)]
        self._ended.clear()
        assert set(steps) <= set(self._visible())
        newest = max(complete, key=lambda ticket: ticket.attempt, default=None)
        if newest is not None and self.is_sound:
            assert max(steps, default=-1) >= newest.step, f"{newest} was complete and is lost"
        self.launch()

    def _is_complete(self, ticket: SaveTicket) -> bool:
        """Return whether what lives holds all of a save, and the head knows it."""
        told, count = self._told[ticket], ticket.hosts
        digests = {digest for _, part in told.values() for digest in part.digests}
        held = {n for n, (host, _) in told.items() if host in self.hosts and host.holds(ticket)}
        is_whole = all({share, (share + 1) % count} & held for share in range(count))
        return 0 in told and len(digests) == 1 and is_whole

    def _replace_a_writer(self) -> None:
        self.dice.choice(self.hosts).link.replace("killed")

    def _doom_a_writer(self) -> None:
        if self.processes:
            files = self.dice.choice(self.processes[-len(self.hosts) :]).files
            files.left = self.dice.randrange(1, 40)
            files.ends_by_hanging = self.dice.random() < 0.4

    def _let_go_on(self) -> None:
        """Let a disk that hangs answer at last."""
        for process in self.processes:
            if process.files.is_dead:
                process.wait(60.0)

    def _turn_the_disk(self) -> None:
        self.refuses = 0 if self.refuses else self.dice.choice([errno.EIO, errno.ENOSPC])
        self._may_be_pruned |= self.refuses == errno.ENOSPC

    def _heal(self) -> None:
        self.refuses = 0
        for process in self.processes:
            if not process.files.is_dead:
                process.files.left = None

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        def start(command: Sequence[str], **_: Any) -> _Process:
            control, files, _ = map(int, command[-3:])
            channel = Channel.adopt(os.dup(control))
            self.processes.append(_Process(self, channel, commits=files >= 0))
            return self.processes[-1]

        timeout = subprocess.TimeoutExpired
        names = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=timeout)
        patch.setattr(writer_link, "subprocess", names)
        patch.setattr("holdfast.runtime.saving.committer.DaemonExecutor", PromptExecutor)
