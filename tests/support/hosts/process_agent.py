"""As much of an agent and a head as a writer's process needs, and the workers of one launch."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from host_saves import Workers, plan_of
from host_writer import records_in

from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.saves import SaveAnswered, SaveCoordinator, SaveOrder, Settled
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import Record, Records
from holdfast.runtime.saving.save_memory import SaveMemory
from holdfast.runtime.saving.save_messages import WriterAnswer
from holdfast.runtime.saving.writer_link import WriterLink
from holdfast.runtime.system.reactor import Reactor
from holdfast.runtime.system.worker_status import WorkerStatus


class AgentOfProcess:
    """Starts a real writer, and plays the workers; its clock stands still."""

    saves: Workers
    """Those of the newest launch."""

    def __init__(self, run_dir: Path) -> None:
        self.answers: list[SaveAnswered] = []
        self.records: list[Record] = []
        self.reactor = Reactor()
        self.now = 1000.0
        self.status = WorkerStatus.create()
        """Has the lease of the host."""
        self.memory = SaveMemory(lambda: ())
        self.link = WriterLink(
            self.reactor,
            self._take,
            self.memory,
            clock=lambda: self.now,
            lease_fd=self.status.fd,
        )
        self.link.start()
        self.run_dir = run_dir
        self._settled: list[int | None] = []
        self.launch()

    def launch(self, number: int = 1, *, shards: int = 2) -> None:
        """Begin a launch or a stage: its memory and plan are told."""
        plan = plan_of(self.run_dir, shards=shards, generation=number)
        if number > 1:
            self.saves.close()
        self.saves = Workers(plan, launch=number, memory=self.memory)
        self._coordinator = SaveCoordinator(number)
        self.link.use(self.saves.given)
        message = self.saves.plan_message()
        self.memory.plan(number, message)
        self.link.plan(message)

    def copy(self, attempt: int, *parts: int) -> None:
        """Copy these of two parts of a save, and let the head hear of it."""
        ticket = self.saves.ticket(10 * attempt, attempt)
        for part in parts:
            held = self.memory.take_part(self.saves.copy(ticket, part))
            if held is not None:
                self._carry_out(self._coordinator.take(held))

    def save(self, attempt: int) -> SaveAnswered:
        """Let a save be written, and return its answer."""
        self.copy(attempt, 0, 1)
        self.wait_until(lambda: attempt in [answer.ticket.attempt for answer in self.answers])
        return self.answers[-1]

    def settle(self) -> int | None:
        """Let all workers die, and return the step that is durable."""
        self._carry_out(self._coordinator.settle())
        self.wait_until(lambda: bool(self._settled))
        return self._settled.pop()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Serve until something is so."""
        while not is_so():
            self.reactor.run_once(10.0)

    def stop_writer(self) -> int:
        """Stop the writer, and return its process id."""
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
        """What has become of each save that was answered."""
        words = {True: "saved", False: "unsaved"}
        return [(words[answer.is_durable], answer.ticket.attempt) for answer in self.answers]

    @property
    def steps(self) -> tuple[int, ...]:
        """The committed steps."""
        return CheckpointStore(self.run_dir).steps()

    def close(self) -> None:
        """End the writer, and give the memory back."""
        self.link.close()
        self.reactor.close()
        self.saves.close()
        self.memory.close()
        self.status.close()

    def _take(self, told: WriterAnswer | Notice | Records) -> None:
        match told:
            case Records():
                self.records += records_in(told)
            case Notice():
                pass
            case _:
                self._carry_out(self._coordinator.take(told))

    def _carry_out(self, orders: Iterable[SaveOrder]) -> None:
        for order in orders:
            match order:
                case SaveAnswered():
                    self.answers.append(order)
                case Settled(step):
                    self._settled.append(step)
                case _:
                    self.link.work(order)
