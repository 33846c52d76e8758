"""A run directory with checkpoints, and workers that go on from it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from configs import journal_of, without_faults, worker_config
from fake_communicator import FakeCommunicator, run_world
from local_communicator import LocalCommunicator
from whole_save import save

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.world import WorkerId
from holdfast.runtime.data.samples import ArrayData
from holdfast.runtime.exchange.membership import Communicator, WorldBroken
from holdfast.runtime.model.replica import ContributionShape
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.journal import Record, read_journal
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.callback_host import CallbackHost
from holdfast.runtime.training.consistency import Mine
from holdfast.runtime.training.job_state import TrainingState
from holdfast.runtime.training.restoring import JobRestore, Patience
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest, describe_job
from holdfast.runtime.worker.context import WorkerContext

FLOATS = 40_000

_communicators: dict[int, FakeCommunicator] = {}
"""By the thread of each worker."""


class Weights:
    """A replica that has only a state."""

    shape = ContributionShape(FLOATS, 1)

    def __init__(self, fill: float, floats: int = FLOATS) -> None:
        self.weights = np.full(floats, fill, np.float32)

    def state(self) -> Tensors:
        return {"weights": self.weights}

    def load(self, state: Tensors) -> None: ...


class Clock:
    """A worker's clock that only its waits move."""

    def __init__(self, on_nap: Callable[[], None] = lambda: None) -> None:
        self.now_s = 0.0
        self.naps: list[float] = []
        self._on_nap = on_nap

    def now(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now_s += seconds
        self._on_nap()

    @property
    def patience(self) -> Patience:
        return Patience(clock=self.now, sleep=self.sleep)


class Run:
    """A run directory with checkpoints, and workers that want to go on from it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = CheckpointStore(directory)
        self.numerics = Numerics.here(threads=1)
        self.job = self._job()
        self.bytes_read: Counter[int] = Counter()
        self.notices: list[str] = []
        self.on_nap: Callable[[], None] = lambda: None
        """Called in each wait, by the worker that waits."""
        self.clocks: dict[int, Clock] = {}
        """Of each worker of the last restore, by its rank."""
        self.contexts: dict[int, WorkerContext] = {}
        self._ranks: dict[int, int] = {}

    def save(self, step: int, fill: float, writers: int) -> Path:
        """Save a state whose weights are all ``fill``."""
        state = TrainingState(Weights(fill), CallbackHost()).tensors(Cursor.start(1))
        cursor = dict(self.job.facts_of_run) | {"step": step}
        return self.save_state(state, step, cursor, writers=writers)

    def save_state(
        self,
        state: Tensors,
        step: int,
        cursor: Mapping[str, object],
        *,
        run_id: str = "run",
        writers: int = 1,
    ) -> Path:
        """Save any state with its cursor, as a run with the numerics of this process."""
        header, numerics = Header(run_id, 1, step), to_plain(self.numerics)
        return save(
            self.store, state, header=header, writers=writers, cursor=cursor, numerics=numerics
        )

    def restore(self, ranks: int, floats: int = FLOATS) -> list[tuple[int, float] | None]:
        """Return the step and the weights that each of ``ranks`` workers restores.

        If a death has broken the world, no member restores a state.
        """

        def program(communicator: FakeCommunicator) -> tuple[int, float] | None:
            self._ranks[threading.get_ident()] = communicator.rank
            _communicators[threading.get_ident()] = communicator
            context = self._context(communicator)
            replica = Weights(0, floats)
            clock = self.clocks[communicator.rank] = Clock(self.on_nap)
            self.contexts[communicator.rank] = context
            try:
                state = TrainingState(replica, CallbackHost())
                mine = Mine(context, self.job, state, Cursor.start(1))
                restored = JobRestore(mine, communicator, clock.patience).run()
            except WorldBroken:
                return None
            finally:
                context.page.close()
                context.journal.close()
            communicator.leave()
            if restored is None:
                return None
            (value,) = np.unique(restored.state["weights"])
            return restored.manifest.step, float(value)

        return list(run_world(ranks, program))

    def count(self, plain: object, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count what each rank reads from now on."""

        def read(files: FileSystem, handle: int, buffer: memoryview, offset: int) -> int:
            self.bytes_read[self._ranks[threading.get_ident()]] += len(buffer)
            return plain(files, handle, buffer, offset)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(FileSystem, "read", read)

    def reasons(self) -> list[str]:
        return [record["reason"] for record in self.journal("rejected")]

    def journal(self, event: str) -> list[Record]:
        records = read_journal(self.directory / "journal.jsonl")
        return [record for record in records if record["event"] == event]

    def context(self) -> WorkerContext:
        """Return the surroundings of a worker that is alone."""
        return self._context(LocalCommunicator())

    def rank_of(self, thread: int) -> int | None:
        """Return which worker a thread is."""
        return self._ranks.get(thread)

    @staticmethod
    def die() -> None:
        """Kill the worker that calls this."""
        _communicators[threading.get_ident()].die()

    def _hear(self, report: dict[str, object]) -> None:
        self.notices.append(str(report["text"]))

    def _job(self) -> TrainingJob:
        data = ArrayData(np.zeros((8, 1)), np.zeros(8))
        request = TrainingRequest(data, None, 8, 1, keep=2)
        return describe_job(request, self._config(WorkerId(0), 1), self.numerics)

    def _config(self, worker: WorkerId, ranks: int) -> WorkerConfig:
        return worker_config(
            worker,
            range(ranks),
            run_dir=self.directory,
            run_id="run",
            generation=2,
            microbatches=2,
        )

    def _context(self, communicator: Communicator) -> WorkerContext:
        config = self._config(WorkerId(communicator.rank), communicator.size)
        journal = journal_of(config)
        injector = without_faults(config)
        page = WorkerStatus.create()
        return WorkerContext(
            config,
            communicator,
            journal,
            page,
            injector,
            self._hear,
            ask_agent=lambda _: {},
        )
