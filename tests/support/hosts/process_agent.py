"""As much of an agent as a writer's process needs, and the workers of one launch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from host_saves import Workers, memory_of, plan_of
from host_writer import records_in

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Record, Records
from holdfast.runtime.saving.save_messages import PlanSaves, SaveAnswered, Settle, Settled
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.worker_status import WorkerStatus


class AgentOfProcess:
    """Starts a real writer, and plays the workers; its clock stands still."""

    def __init__(self, run_dir: Path) -> None:
        self.answers: list[SaveAnswered] = []
        self.settled: list[int | None] = []
        self.records: list[Record] = []
        self.reactor = Reactor()
        self.now = 1000.0
        self.status = WorkerStatus.create()
        """Has the lease of the host."""
        self.link = WriterLink(
            self.reactor, self._take, clock=lambda: self.now, lease_fd=self.status.fd
        )
        self.link.start()
        self.run_dir = run_dir
        self._launches: list[Workers] = []
        self.launch()

    def launch(self, number: int = 1, *, shards: int = 2) -> None:
        """Begin a launch or a stage: its memory and plan are told."""
        self.saves = Workers(plan_of(self.run_dir, shards=shards, generation=number), launch=number)
        self._launches.append(self.saves)
        self.link.use(self.saves.memory, self.saves.fds)
        self.link.plan(PlanSaves(1), (memory_of(encode(self.saves.plan)),))

    def end_launch(self) -> None:
        """Give the memory of the newest launch back."""
        self._launches.pop().close()

    def _take(self, told: SaveAnswered | Settled | Notice | Records) -> None:
        if isinstance(told, SaveAnswered):
            self.answers.append(told)
        elif isinstance(told, Settled):
            self.settled.append(told.step)
        elif isinstance(told, Records):
            self.records += records_in(told)

    def write(self, attempt: int) -> None:
        for copied in self.saves.copy_all(self.saves.ticket(10 * attempt, attempt)):
            self.link.copied(*copied.sent())

    def write_part(self, attempt: int, part: int, *, generation: int = 0) -> None:
        ticket = self.saves.ticket(10 * attempt, attempt, generation=generation)
        self.link.copied(*self.saves.copy(ticket, part).sent())

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            self.reactor.run_once(10.0)

    def save(self, attempt: int) -> SaveAnswered:
        """Let a save be written, and return its answer."""
        self.write(attempt)
        self.wait_until(lambda: attempt in [answer.ticket.attempt for answer in self.answers])
        return self.answers[-1]

    def settle(self) -> int | None:
        self.link.settle(Settle(is_urgent=False))
        self.wait_until(lambda: bool(self.settled))
        return self.settled.pop()

    def stop_writer(self) -> int:
        assert self.link.pid is not None
        os.kill(self.link.pid, signal.SIGSTOP)
        return self.link.pid

    def kill_writer(self) -> None:
        """Kill the writer, and let the agent see its end."""
        pid = self.link.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.wait_until(lambda: self.link.pid != pid)

    @property
    def outcomes(self) -> list[tuple[str, int]]:
        words = {True: "saved", False: "unsaved"}
        return [(words[answer.is_durable], answer.ticket.attempt) for answer in self.answers]

    @property
    def steps(self) -> tuple[int, ...]:
        return CheckpointStore(self.run_dir).steps()

    def close(self) -> None:
        self.link.close()
        self.reactor.close()
        for saves in self._launches:
            saves.close()
        self.status.close()
