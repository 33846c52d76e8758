"""Whole jobs in one process: training loops in threads over the fake communicator.

Everything but the transport and the agent is real: loop, saver, committer, journal and
checkpoints on the disk.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pytest
from configs import journal_of, worker_config
from fake_communicator import FakeCommunicator, run_world
from host_saves import begin_run

from holdfast.checkpoint.errors import CheckpointError, SnapshotDamaged
from holdfast.checkpoint.shares import digests_of
from holdfast.checkpoint.tensor import Tensors, state_sha256
from holdfast.recovery.event import Event, WorkInHand
from holdfast.recovery.fault import Fault, FaultKind, index_faults
from holdfast.recovery.reduction import FloatVector
from holdfast.recovery.saves import (
    CommitSave,
    MakeSpace,
    RemoveSave,
    SaveAnswered,
    SaveCommitted,
    SaveCoordinator,
    SaveNews,
    SaveOrder,
    SaveRemoved,
    ShareWritten,
    SpaceMade,
    WorkFailed,
    WriteShare,
)
from holdfast.recovery.world import OneWorld, WorkerId
from holdfast.runtime.data.feed import Feed, Pipelines
from holdfast.runtime.data.samples import ArrayData
from holdfast.runtime.model.replica import ContributionShape, Microbatch
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.checkpoint_events import CheckpointFailed
from holdfast.runtime.run.journal import Journal, read_journal
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.saving.committer import Committer, PlannedMemory
from holdfast.runtime.saving.plan import SavePlan
from holdfast.runtime.saving.save_memory import HostBuffers, SaveMemory
from holdfast.runtime.saving.save_messages import (
    AskHeld,
    AskMemory,
    OfWorker,
    PartCopied,
    PlanSaves,
    WriterWork,
)
from holdfast.runtime.system.channel import FDS, MessageKinds, to_message
from holdfast.runtime.system.codec import decode
from holdfast.runtime.system.worker_status import RequestFlag, SurvivorsMet, WorkerStatus
from holdfast.runtime.training.callback_host import CallbackHost
from holdfast.runtime.training.job_state import TrainingState
from holdfast.runtime.training.loop import TrainingLoop
from holdfast.runtime.training.stages import membership_of
from holdfast.runtime.training.training_job import TrainingRequest, describe_job
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.injector import FaultInjector

_OF_SAVES: MessageKinds[OfWorker] = MessageKinds(OfWorker)
_RUN = "simulated"
_Result = TypeVar("_Result")

FEATURES, SAMPLES, BATCH, EPOCHS = 37, 23, 9, 2
STEPS = EPOCHS * -(-SAMPLES // BATCH)
NUMERICS = Numerics.here(threads=1)


class TinyReplica:
    """Linear regression with momentum."""

    def __init__(self) -> None:
        self.weights = np.zeros(FEATURES, np.float32)
        self.velocity = np.zeros(FEATURES, np.float32)

    @property
    def shape(self) -> ContributionShape:
        return ContributionShape(FEATURES, 1)

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        error = (batch.x * self.weights).sum(axis=1) - batch.y
        noise = np.float32(1 + (batch.seed % 1000) / 1e5)
        out[:FEATURES] = (batch.x * error[:, None]).sum(axis=0) * noise
        out[FEATURES] = (error * error).sum()

    def apply(self, total: FloatVector, samples: int) -> None:
        self.velocity *= np.float32(0.9)
        self.velocity -= np.float32(0.01) * total[:FEATURES] / np.float32(samples)
        self.weights += self.velocity

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        error = (batch.x * self.weights).sum(axis=1) - batch.y
        out[0] = (error * error).sum()

    def results(self, sums: Any, samples: int) -> dict[str, float]:
        return {"loss": float(sums[0]) / samples}

    def state(self) -> Tensors:
        return {"weights": self.weights, "velocity": self.velocity}

    def load(self, state: Tensors) -> None:
        self.weights[...] = state["weights"]
        self.velocity[...] = state["velocity"]


class Watching(TinyReplica):
    """Takes down what its page has in hand whenever it computes, and what it is given."""

    def __init__(self, page: WorkerStatus, weight: float = 0.0) -> None:
        super().__init__()
        self.weights += np.float32(weight)
        self._page = page
        self.noted: list[WorkInHand | None] = []
        self.given: list[Microbatch] = []

    @property
    def parts(self) -> list[int]:
        """The numbers of the microbatches that were computed."""
        return [work.microbatch for work in self.noted if work is not None]

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        self._note(batch)
        super().contribute(batch, out)

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        self._note(batch)
        super().evaluate(batch, out)

    def _note(self, batch: Microbatch) -> None:
        self.noted.append(self._page.work)
        self.given.append(batch)


class TurningReplica:
    """Two regressions in two turns: the second learns what the updated first one predicts."""

    def __init__(self) -> None:
        self._pair = (TinyReplica(), TinyReplica())
        self._turn = np.zeros((), np.int64)
        self.finished = np.zeros((), np.int64)

    @property
    def shape(self) -> ContributionShape:
        return self._pair[0].shape

    @property
    def turn(self) -> int:
        return int(self._turn)

    def contribute(self, batch: Microbatch, out: FloatVector) -> None:
        y = (batch.x * self._pair[0].weights).sum(axis=1) if self.turn else batch.y
        self._pair[self.turn].contribute(Microbatch(batch.x, y, batch.seed), out)

    def apply(self, total: FloatVector, samples: int) -> None:
        self._pair[self.turn].apply(total, samples)
        self._turn[...] = 1 - self._turn

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None:
        self._pair[1].evaluate(batch, out)

    def results(self, sums: Any, samples: int) -> dict[str, float]:
        return self._pair[0].results(sums, samples)

    def finish(self) -> None:
        self.finished[...] = 1

    def state(self) -> Tensors:
        first, second = (replica.state() for replica in self._pair)
        named = {f"{name}/{i}": a for i, s in enumerate((first, second)) for name, a in s.items()}
        return {**named, "optimizer/turn": self._turn, "optimizer/finished": self.finished}

    def load(self, state: Tensors) -> None:
        for name, array in self.state().items():
            array[...] = state[name]


def data(samples: int = SAMPLES) -> ArrayData:
    dice = np.random.default_rng(2003)
    x = dice.normal(size=(samples, FEATURES)).astype(np.float32)
    return ArrayData(x, x.sum(axis=1).astype(np.float32))


class Drawn:
    """A pipeline of batches of these sizes, drawn from the number of their pass and ``also``."""

    name, advice, is_endless = "the test's pipeline", "leave it alone", False
    repeats = False

    def __init__(self, sizes: Sequence[int], also: int = 0) -> None:
        self.batches: int | None = len(sizes)
        self._sizes, self._also = sizes, also

    def open(self, number: int, start: int) -> tuple[int, Iterator[Any]]:
        return 0, self.passing(number)

    def leave(self, number: int, start: int) -> None: ...

    def array(self, leaf: Any) -> Any:
        return np.asarray(leaf)

    def passing(self, number: int) -> Iterator[Any]:
        dice = np.random.default_rng([number, self._also])
        for size in self._sizes:
            x = dice.normal(size=(size, FEATURES)).astype(np.float32)
            yield x, x.sum(axis=1).astype(np.float32)


Supply: TypeAlias = Callable[[], tuple[ArrayData | Feed, ArrayData | Feed | None]]
"""Makes what each worker of a launch trains on and validates with."""


def arrays() -> tuple[ArrayData, ArrayData]:
    """Return arrays to train on and to validate with."""
    return data(), data(11)


class LazyFuture(Future[_Result]):
    """Runs its task when it has been asked often enough whether it is done."""

    def __init__(self, task: Callable[[], _Result], patience: int) -> None:
        super().__init__()
        self._task: Callable[[], _Result] | None = task
        self._patience = patience

    def done(self) -> bool:
        self._patience -= 1
        if self._patience < 0:
            self._run()
        return super().done()

    def result(self, timeout: float | None = None) -> _Result:
        self._run()
        return super().result(timeout)

    def _run(self) -> None:
        task, self._task = self._task, None
        if task is None:
            return
        try:
            self.set_result(task())
        except Exception as error:  # as in concurrent.futures
            self.set_exception(error)


class LazyExecutor:
    """Stands in for the host's writer: slow and fast by the dice, but the same every time.

    Tasks run in their order; what is left when all workers have ended is never run.
    """

    dice = random.Random(0)
    patience = (0, 0, 1, 3, 8)

    def __init__(self) -> None:
        self._queue: list[LazyFuture[Any]] = []

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        earlier = tuple(self._queue)

        def task() -> Any:
            for future in earlier:
                future._run()
            return call(*arguments)

        self._queue.append(LazyFuture(task, self.dice.choice(self.patience)))
        return self._queue[-1]

    def ask(self) -> None:
        """Ask all tasks whether they are done."""
        for future in self._queue:
            future.done()


class SimulatedHost:
    """What one host has of the saves: the memory of its workers, and where all lies there."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.memory = SaveMemory(lambda: ())
        self._planned: dict[str, tuple[PlannedMemory, HostBuffers]] = {}

    def plan(self, plan: SavePlan, launch: int, message: PlanSaves) -> None:
        """Take the plan of the saves in a memory."""
        self.memory.plan(launch, message)
        if message.layout in self._planned:
            self._planned[message.layout][1].close()
        question = AskMemory(message.layout, 0, 0)  # its worker has asked before
        fds = self.memory.buffers(launch, question)[0].fds
        planned = PlannedMemory(plan, plan.image_map(message.share, message.hosts))
        self._planned[message.layout] = planned, HostBuffers.of_agent(map(os.dup, fds))

    def write(self, work: WriteShare, committer: Committer) -> ShareWritten:
        """Write a share, as the host's writer does."""
        for planned, buffers in self._planned.values():
            view = buffers[buffers.place_of(work.ticket.attempt)]
            if digests_of(view, work.ticket.key) is not None:
                return ShareWritten(work.ticket, work.share, committer.write(work, planned, view))
        raise SnapshotDamaged(f"step {work.ticket.step} is in no memory")

    def close(self) -> None:
        """Give the memory back."""
        for _, buffers in self._planned.values():
            buffers.close()
        self.memory.close()


class SimulatedAgent:
    """The agents of all hosts, their head, and writers that are as slow as the dice say."""

    def __init__(self, run_dir: Path, run_id: str, launch: int, worlds: OneWorld) -> None:
        self._journal = Journal(RunDirectory(run_dir).journal_path, run_id=run_id, source="agent")
        self._launch, self._worlds = launch, worlds
        self._lock = threading.RLock()
        self._writer = LazyExecutor()
        self._pages: list[WorkerStatus] = []
        self._hosts: dict[str, SimulatedHost] = {}
        self._committer: Committer | None = None
        self._head = SaveCoordinator(launch)

    def page(self) -> WorkerStatus:
        """Return the status of one more worker."""
        self._pages.append(_AnsweredStatus(self))
        return self._pages[-1]

    def lose(self, page: WorkerStatus) -> None:
        """Forget a worker."""
        self._pages.remove(page)
        page.close()

    def answer(self, host: str, question: dict[str, Any]) -> dict[str, Any]:
        """Give memory for saves, and name worlds as a head does that hears of each death."""
        if question["kind"] == SurvivorsMet.__name__:
            workers = question["workers"]
            self._worlds.ask(workers[0], workers, 0.0)
            word = self._worlds.next_word(workers, 0.0)
            assert word is not None
            return {"world": word.generation}
        if question not in _OF_SAVES:
            return {}
        asked = _OF_SAVES.decode(question)
        with self._lock:
            memory = self._host(host).memory
            if isinstance(asked, AskHeld):
                held, fds = memory.held(asked.step)
                return {**to_message(held), FDS: [os.dup(fd) for fd in fds]}
            assert isinstance(asked, AskMemory)
            made, _ = memory.buffers(self._launch, asked)
            return {FDS: [os.dup(fd) for fd in made.fds]}

    def hear(self, host: str, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Take a plan, or the part of a worker; begin to write what is complete."""
        if message not in _OF_SAVES:
            return
        with self._lock:
            match told := _OF_SAVES.decode(message):
                case PlanSaves(generation):
                    plan = decode(SavePlan, told.plan.encode())
                    self._carry_out(self._head.begin_world(generation))
                    self._take_plan(plan)
                    self._host(host).plan(plan, self._launch, told)
                case PartCopied():
                    held = self._host(host).memory.take_part(told)
                    if held is not None:
                        self._carry_out(self._head.take(replace(held, host=host)))

    def poll(self, generation: int) -> None:
        """Go on with the saves, which a worker of this world waits for."""
        with self._lock:
            self._carry_out(self._head.begin_world(generation))
            self._writer.ask()

    def record(self, event: Event) -> None:
        """Write down what the committer tells."""
        self._journal.record(event)

    def notify(self, text: str) -> None:
        """Show nobody what the committer says."""

    def disk_moved(self, change: int) -> None:
        """Do nothing: nobody watches the disk."""

    def close(self) -> None:
        """Leave undone what is not committed, as an agent that is killed."""
        if self._committer is not None:
            self._committer.close(0.0)
        self._journal.close()
        for host in self._hosts.values():
            host.close()

    def _host(self, name: str) -> SimulatedHost:
        return self._hosts.setdefault(name, SimulatedHost(name))

    def _take_plan(self, plan: SavePlan) -> None:
        if self._committer is None or plan != self._committer.plan:
            if self._committer is not None:
                self._committer.close(0.0)
            self._committer = Committer(plan, self)

    def _carry_out(self, orders: Sequence[SaveOrder]) -> None:
        for order in orders:
            match order:
                case SaveAnswered(ticket, is_durable, reason, is_expected):
                    if not (is_durable or is_expected):
                        self.record(CheckpointFailed(ticket.step, reason))
                    for page in self._pages:
                        page.answer_save(ticket.attempt, is_durable=is_durable)
                case WriteShare() | CommitSave() | MakeSpace() | RemoveSave():
                    self._writer.submit(self._work, order)

    def _work(self, work: WriterWork) -> None:
        committer, share = self._committer, None
        assert committer is not None
        news: SaveNews
        try:
            match work:
                case WriteShare():
                    share = work.share
                    news = self._host(work.host).write(work, committer)
                case CommitSave():
                    committer.commit(work, committer.plan)
                    news = SaveCommitted(work.ticket)
                case MakeSpace():
                    committer.make_space(work.ticket)
                    news = SpaceMade(work.ticket)
                case RemoveSave():
                    committer.remove(work.ticket)
                    news = SaveRemoved(work.ticket)
        except (CheckpointError, OSError) as error:
            news = WorkFailed(work.ticket, share, str(error))
        self._carry_out(self._head.take(news))


class _AnsweredStatus(WorkerStatus):
    """The status of a worker whose agent gets on whenever the worker looks for an answer."""

    def __init__(self, agent: SimulatedAgent) -> None:
        with contextlib.closing(WorkerStatus.create()) as made:
            super().__init__(os.dup(made.fd))
        self._agent = agent

    def is_answered(self, attempt: int) -> bool:
        self._agent.poll(self.generation)
        return super().is_answered(attempt)


class PromptExecutor:
    """Stands in for the threads of a committer: each task is done when it is submitted."""

    def __init__(self, threads: int, name: str) -> None:
        pass

    def submit(self, call: Callable[..., Any], *arguments: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*arguments))
        except Exception as error:  # as in concurrent.futures
            future.set_exception(error)
        return future

    def shutdown(self) -> None:
        """Do nothing: nothing is left to do."""


def wait_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """Let the writer work when it is asked often enough, and nothing wait for it or for the disk.

    A lazy writer gets nowhere while others only wait, and here no power goes.
    """
    patch.setattr("holdfast.runtime.saving.agent_saver._AgentSave.wait", lambda *_: None)
    for room in ("agent_saver", "committer"):
        name = f"holdfast.runtime.saving.{room}.DaemonExecutor"
        patch.setattr(name, PromptExecutor)
    patch.setattr("holdfast.checkpoint.filesystem.os.fsync", lambda fd: None)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of a simulated job."""

    workers: int
    capacity: int
    microbatches: int
    seed: int = 0
    deaths: Mapping[int, int] = field(default_factory=dict)
    """Ranks that die, with the moment at which they do."""
    faults: tuple[Fault, ...] = ()
    asks: RequestFlag = RequestFlag.NONE
    asks_at_step: int = 0
    save_every: int | str = 2
    keep_best: tuple[str, str] | None = None
    callback_host: Callable[[TinyReplica, int], CallbackHost] = lambda replica, rank: CallbackHost()
    """Makes the callback host of the worker of a rank."""
    replica: Callable[[], Any] = TinyReplica
    dies_of: type[Exception] | tuple[()] = ()
    """An error that ends its worker, as the end of a process does."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a worker ended that lived to the end of the launch."""

    step: int
    is_complete: bool
    sha256: str


class SimulatedJob:
    """A run directory and the launches of a job in it; workers go round the ``hosts``."""

    def __init__(self, run_dir: Path, supply: Supply = arrays, *, hosts: str = "") -> None:
        self._run_dir = run_dir
        self._hosts = hosts
        self._supply = supply
        self._generation = 1
        self._first_worker = 0
        begin_run(run_dir, _RUN)

    def launch(self, terms: Launch) -> list[Ending | None]:
        """Run one launch; return how each worker ended, None for the dead."""
        LazyExecutor.dice.seed(terms.seed)
        workers = tuple(WorkerId(self._first_worker + rank) for rank in range(terms.workers))
        generation = self._generation
        self._first_worker += terms.workers
        self._generation += terms.workers

        agent = SimulatedAgent(self._run_dir, _RUN, generation, OneWorld(generation, workers))

        def program(communicator: FakeCommunicator) -> Ending:
            config = worker_config(
                workers[communicator.rank],
                workers,
                run_dir=self._run_dir,
                run_id=_RUN,
                generation=generation,
                microbatches=terms.microbatches,
                seed=7,
                capacity=terms.capacity,
                hosts=[host for _, host in zip(workers, itertools.cycle(self._hosts))],
            )
            return self._work(terms, config, communicator, agent)

        with contextlib.closing(agent):
            return run_world(terms.workers, program, seed=terms.seed, deaths=terms.deaths)

    def journal(self, event: str) -> list[dict[str, Any]]:
        """Return the journal's records of one kind."""
        records = read_journal(RunDirectory(self._run_dir).journal_path)
        return [record for record in records if record["event"] == event]

    def _work(
        self,
        terms: Launch,
        config: WorkerConfig,
        communicator: FakeCommunicator,
        agent: SimulatedAgent,
    ) -> Ending:
        """Be one worker."""
        page, journal = agent.page(), journal_of(config)
        injector = FaultInjector(
            config.worker,
            index_faults(terms.faults),
            announce=lambda visit, kind: None,
            strike=lambda kind: communicator.die(),
        )
        host = config.host_of.get(config.worker, "")
        hear, answer = partial(agent.hear, host), partial(agent.answer, host)
        context = WorkerContext(config, communicator, journal, page, injector, hear, answer)
        training, validation = self._supply()
        request = TrainingRequest(
            training, validation, BATCH, EPOCHS, terms.save_every, keep=2, keep_best=terms.keep_best
        )
        replica = terms.replica()
        callback_host = terms.callback_host(replica, communicator.rank)
        state = TrainingState(replica, callback_host, Pipelines(training))
        job = describe_job(request, config, NUMERICS)
        loop = TrainingLoop(context, membership_of(context), state, job)
        if terms.asks and communicator.rank == communicator.size - 1:
            _ask_later(replica, page, terms)
        try:
            cursor = loop.run()
            sha256 = state_sha256(state.tensors(cursor))
            communicator.leave()
            return Ending(cursor.step, loop.is_complete, sha256)
        except terms.dies_of:
            communicator.die()
            raise
        finally:
            journal.close()
            agent.lose(page)


def undisturbed_end(run_dir: Path, terms: Launch, supply: Supply = arrays) -> Ending:
    """Return how a worker ends that is alone, and to which nothing happens."""
    with pytest.MonkeyPatch.context() as patch:
        wait_for_nothing(patch)
        (ending,) = SimulatedJob(run_dir, supply).launch(terms)
    assert ending is not None
    assert ending.is_complete
    return ending


def _ask_later(replica: Any, page: WorkerStatus, terms: Launch) -> None:
    """Let the agent ask for something once the replica has applied so many updates."""
    apply, applied = replica.apply, [0]

    def counting_apply(total: FloatVector, samples: int) -> None:
        apply(total, samples)
        applied[0] += 1
        if applied[0] == terms.asks_at_step:
            page.ask(terms.asks)

    replica.apply = counting_apply


KILL = FaultKind.KILL
