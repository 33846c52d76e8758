"""A host whose workers and writers die, whose disk fills up, and whose messages come late.

Workers are played by dice.  The agent's link, the writer and the file system are real.  A
writer is a thread instead of a process: when it dies, every further call of it fails.  After
each message the host waits until the writer is idle, so a seed is one order of events.
"""

from __future__ import annotations

import contextlib
import errno
import os
import random
import subprocess
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from committing_report import StrikeResult
from host_saves import Copied, Workers, memory_of, plan_of, saved_steps
from host_writer import PING, PONG, Answering
from simulation import PromptExecutor

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.runtime.saving import writer_link
from holdfast.runtime.saving.save_messages import (
    OfWriter,
    PlanSaves,
    SaveAnswered,
    SaveTicket,
    Settle,
    Settled,
)
from holdfast.runtime.saving.writer import HostWriter
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.channel import Channel, Message, to_message
from holdfast.runtime.system.codec import encode

_CHANGES = frozenset(
    {"mkdir", "create_exclusive", "write", "fsync", "fsync_directory", "rename_noreplace"}
    | {"unlink", "rmdir"}
)


class _Died(BaseException):
    """The writer's process is no more."""


class _Files:
    """The file system as one writer sees it: it dies at a call, or the disk is full."""

    def __init__(self, root: Path, host: HostSimulation) -> None:
        self._plain = FileSystem(root)
        self._host = host
        self.dies_in: int | None = None
        self.is_dead = False

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._plain, name)
        return self._mortal(name, call) if name in _CHANGES else call

    def _mortal(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any) -> Any:
            if self.dies_in is not None:
                self.dies_in -= 1
                self.is_dead |= self.dies_in <= 0
            if self.is_dead:
                raise _Died
            if self._host.is_full and name in ("create_exclusive", "mkdir"):
                raise OSError(errno.EIO, "Input/output error")
            return call(*arguments)

        return change


class _Process:
    """A writer in a thread, as far as its agent handles a process."""

    pid = 1

    def __init__(self, host: HostSimulation, channel: Channel) -> None:
        self.files = _Files(host.run_dir, host)
        self._channel = channel
        self._host = host
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def kill(self) -> None:
        self.files.is_dead = True

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else 0

    def wait(self, within_s: float) -> int:
        self._thread.join(within_s)
        return 0

    def _run(self) -> None:
        try:
            HostWriter(Answering(self._channel), self.files).run()  # type: ignore[arg-type]
        except _Died:
            pass
        finally:
            self._channel.close()


class _Reactor:
    """Watches the connection to the newest writer."""

    def __init__(self) -> None:
        self._watched: tuple[Channel, Callable[[Message], None], Callable[[], None]] | None = None

    def watch_channel(
        self, channel: Channel, on_message: Callable[[Message], None], on_end: Callable[[], None]
    ) -> None:
        self._watched = channel, on_message, on_end

    def forget(self, channel: Channel) -> None:
        self._watched = None

    def ping(self) -> None:
        """Wait until the writer has done all that it was told, or has died."""
        if self._watched is None:
            return
        channel, on_message, on_end = self._watched
        channel.post(PING)
        while self._watched is not None and self._watched[0] is channel:
            message = channel.receive()
            if message == PONG:
                return
            if message is None:
                on_end()
            else:
                on_message(message)

    def run_until(self, is_so: Callable[[], object]) -> None:
        while not is_so():
            assert self._watched is not None
            channel, on_message, on_end = self._watched
            message = channel.receive()
            if message is None:
                on_end()
            else:
                on_message(message)


class HostSimulation:
    """The host, and what must hold of it at any time (`check`) and when all is over (`end`)."""

    def __init__(self, run_dir: Path, patch: pytest.MonkeyPatch, seed: int) -> None:
        self.dice = random.Random(seed)
        self.run_dir = run_dir
        self.is_full = False
        self.processes: list[_Process] = []
        self._patch(patch)
        self._reactor = _Reactor()
        self.link = WriterLink(self._reactor, self._take, clock=lambda: 0.0)  # type: ignore[arg-type]
        self._plan = plan_of(run_dir, shards=self.dice.choice([1, 2, 3]))
        self._step = self._attempt = self._answered = 0
        self.generation = 1
        self._flight = 0
        self._outboxes: list[deque[Copied | PlanSaves]] = []
        self._settled: list[int | None] = []
        self._holds: dict[int, SaveTicket] = {}
        """What was copied last into each buffer."""
        self._delivered: dict[SaveTicket, dict[int, str]] = {}
        self.answers: Counter[tuple[int, int]] = Counter()
        self.saved: set[int] = set()
        self.link.start()
        self._memory: Workers | None = None
        self.launch(self.dice.randrange(1, 4), self.dice.choice([1, 2, 2]))

    def _take(self, told: SaveAnswered | Settled | Message) -> None:
        if isinstance(told, Settled):
            self._settled.append(told.step)
        if not isinstance(told, SaveAnswered):
            return
        ticket = told.ticket
        self.answers[ticket.number] += 1
        if ticket.launch == self._workers.launch:
            self._answered = max(self._answered, ticket.attempt)
        if told.is_durable:
            self.saved.add(ticket.step)

    def act(self) -> None:
        """Let something happen, and look whether all is well."""
        actions: list[tuple[int, Callable[[], object]]] = [
            (6, self.begin),
            (14, self._deliver),
            (1, self.lose_a_worker),
            (1, self._lose_all),
            (1, lambda: self.link.replace("killed")),
            (1, self._doom_the_writer),
            (1, self._turn_the_disk),
        ]
        weights, calls = zip(*actions, strict=True)
        self.dice.choices(calls, weights)[0]()
        self.check()

    def check(self) -> None:
        """Fail unless every step is what it should be, and no saved one is missing."""
        assert self.saved <= set(saved_steps(self.run_dir))
        assert set(self.answers.values()) <= {1}, "a save was answered twice"

    def end(self) -> None:
        """Let all messages arrive, and all workers die; then nothing complete may be lost."""
        while any(self._outboxes):
            self._deliver()
        self.is_full = False
        for process in self.processes:
            process.files.dies_in = None
        self._lose_all()
        self.check()
        for ticket, parts in self._delivered.items():
            if len(parts) == ticket.parts:
                assert self.answers[ticket.number] == 1, f"{ticket}"

    def close(self) -> None:
        """End the writer, and give the memory back."""
        self.link.close()
        self._workers.close()

    @property
    def _workers(self) -> Workers:
        assert self._memory is not None  # from the first launch on
        return self._memory

    def launch(self, workers: int, buffers: int) -> None:
        """Begin with workers that go on from the newest step, and memory of their own."""
        if self._memory is not None:
            self._memory.close()
            self.generation += 1
        self._buffers = buffers
        self._memory = Workers(self._plan, buffers, launch=self.generation)
        self._alive = workers
        self._step = max(saved_steps(self.run_dir), default=0)
        self._attempt = self._answered = self._flight = 0
        self._holds.clear()
        self._outboxes = [deque() for _ in range(workers)]
        self.link.use(self._memory.memory, self._memory.fds)
        self._tell_plan(0)
        self.deliver_from(0)

    def begin(self) -> int | None:
        """Copy a save and return its step, unless one is in flight or its buffer is not free."""
        attempt = self._attempt + 1
        if max(self._flight, attempt - self._buffers) > self._answered:
            return None
        self._attempt = self._flight = attempt
        self._step += 10 * self.dice.randrange(1, 3)
        ticket = self._workers.ticket(self._step, attempt, self._alive, self.generation)
        odd = self.dice.randrange(20 * self._alive)
        for part in range(self._alive):
            digest = "odd" if part == odd else ""
            self._outboxes[part].append(self._workers.copy(ticket, part, digest))
        self._holds[ticket.buffer] = ticket
        return self._step

    def _deliver(self) -> None:
        full = [worker for worker, outbox in enumerate(self._outboxes) if outbox]
        if full:
            self.deliver_from(self.dice.choice(full))

    def deliver_from(self, worker: int) -> None:
        """Let the agent hear the next message of a worker, and the writer do what follows."""
        copied = self._outboxes[worker].popleft()
        if isinstance(copied, PlanSaves):
            self.link.plan(copied, (memory_of(encode(self._plan)),))
        else:
            message = copied.message
            if message.ticket.number > (self._workers.launch, self._answered):
                self._delivered.setdefault(message.ticket, {})[message.part] = message.digest
            self.link.copied(*copied.sent())
        self._catch_up()

    def lose_a_worker(self, *, is_heard: bool | None = None) -> None:
        """The last worker dies; what it had sent may still be heard, and late."""
        if self._alive == 1:
            return
        self._alive -= 1
        if not (self.dice.random() < 0.5 if is_heard is None else is_heard):
            self._outboxes[self._alive].clear()
        self._outboxes.append(self._outboxes.pop(self._alive))
        self.generation += 1
        self._flight = 0
        self._tell_plan(0)

    def settle(self) -> int | None:
        """Let the writer settle for workers that are dead; return the durable step."""
        self.link.settle(Settle(is_urgent=False))
        self._reactor.run_until(lambda: self._settled)
        return self._settled.pop()

    def _lose_all(self) -> None:
        """All workers die, and the writer settles; then comes another launch."""
        for worker, outbox in enumerate(self._outboxes):
            while outbox and self.dice.random() < 0.8:
                self.deliver_from(worker)
        step = self.settle()
        if not self.is_full and self.link.pid is not None:
            self._check_settled(step)
        self.launch(self.dice.randrange(1, 4), self._buffers)

    def _check_settled(self, step: int | None) -> None:
        steps = saved_steps(self.run_dir)
        assert step is None or step in steps
        complete = [found for found in self._holds.values() if self._is_complete(found)]
        newest = max(complete, key=lambda ticket: ticket.attempt, default=None)
        if newest is not None:
            assert newest.step in steps, f"{newest} was complete in memory and is lost"

    def _is_complete(self, ticket: SaveTicket) -> bool:
        """Return whether all parts have come in time, and are of one state."""
        found = self._delivered.get(ticket, {})
        return len(found) == ticket.parts and len(set(found.values())) == 1

    def _doom_the_writer(self) -> None:
        if self.processes:
            self.processes[-1].files.dies_in = self.dice.randrange(1, 60)

    def _turn_the_disk(self) -> None:
        self.is_full = not self.is_full

    def _tell_plan(self, worker: int) -> None:
        self._outboxes[worker].append(PlanSaves(self.generation))

    def _catch_up(self) -> None:
        """Wait until the writer has done all that it was told."""
        self._reactor.ping()

    def _patch(self, patch: pytest.MonkeyPatch) -> None:
        def start(command: Sequence[str], **_: Any) -> _Process:
            fd = int(command[command.index("--control-fd") + 1])
            self.processes.append(_Process(self, Channel.adopt(os.dup(fd))))
            return self.processes[-1]

        timeout = subprocess.TimeoutExpired
        names = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL, TimeoutExpired=timeout)
        patch.setattr(writer_link, "subprocess", names)
        patch.setattr("holdfast.runtime.saving.writer.WriterReport", _Report)
        patch.setattr("holdfast.runtime.saving.committer.DaemonExecutor", PromptExecutor)
        patch.setattr("holdfast.checkpoint.filesystem.os.fsync", lambda fd: None)


class _Report(StrikeResult):
    """The report of a writer."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def send(self, message: OfWriter) -> None:
        """Send an answer to a save, or to a settle."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(to_message(message))
