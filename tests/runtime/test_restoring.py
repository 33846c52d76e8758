"""All workers restore one step together: each reads its part, and a bad byte is bad for all."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.header import Header
from holdfast.checkpoint.save import save
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.cursor import Cursor
from holdfast.recovery.fault import FaultPlan
from holdfast.recovery.world import WorkerId
from holdfast.runtime.catch_up import whole_state
from holdfast.runtime.context import WorkerContext, journal_of
from holdfast.runtime.data import ArrayData
from holdfast.runtime.errors import RecoveryImpossible, UsageError
from holdfast.runtime.fake_communicator import FakeCommunicator, run_world
from holdfast.runtime.heartbeat import HeartbeatPage
from holdfast.runtime.injector import FaultInjector
from holdfast.runtime.journal import read_journal
from holdfast.runtime.numerics import Numerics
from holdfast.runtime.replica import ContributionShape, FloatVector, Microbatch, Tensors
from holdfast.runtime.restoring import JobRestore
from holdfast.runtime.training_job import Request, TrainingJob, describe_job
from holdfast.runtime.worker_config import WorkerConfig

FLOATS = 40_000


class Weights:
    """A replica of which only the state matters."""

    shape = ContributionShape(FLOATS, 1)

    def __init__(self, fill: float, floats: int = FLOATS) -> None:
        self.weights = np.full(floats, fill, np.float32)

    def contribute(self, batch: Microbatch, out: FloatVector) -> None: ...

    def apply(self, total: FloatVector, samples: int) -> None: ...

    def evaluate(self, batch: Microbatch, out: FloatVector) -> None: ...

    def results(self, sums: object, samples: int) -> dict[str, float]:
        return {}

    def state(self) -> Tensors:
        return {"weights": self.weights}

    def load(self, state: Tensors) -> None: ...


class Run:
    """A run directory with checkpoints, and workers that want to go on from it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.store = CheckpointStore(directory)
        self.numerics = Numerics.here(threads=1)
        self.job = self._job()
        self.bytes_read: Counter[int] = Counter()
        self._ranks: dict[int, int] = {}

    def save(self, step: int, fill: float, writers: int) -> Path:
        """Save a state whose weights are all ``fill``."""
        state = whole_state(Weights(fill), Cursor.start(1))
        cursor = dict(self.job.identity) | {"step": step}
        return save(
            self.store, state, header=Header("run", 1, step), writers=writers, cursor=cursor
        )

    def restore(self, ranks: int, floats: int = FLOATS) -> list[tuple[int, float] | None]:
        """Return the step and the weights that each of ``ranks`` workers restores."""

        def program(communicator: FakeCommunicator) -> tuple[int, float] | None:
            self._ranks[threading.get_ident()] = communicator.rank
            context = self._context(communicator)
            replica = Weights(0, floats)
            restored = JobRestore(context, self.job, replica).run(communicator, Cursor.start(1))
            communicator.leave()
            context.page.close()
            if restored is None:
                return None
            (value,) = np.unique(restored.state["weights"])
            return restored.manifest.step, float(value)

        return list(run_world(ranks, program))

    def count(self, plain: object, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count what each rank reads from now on."""

        def read(files: LocalFileSystem, handle: int, buffer: memoryview, offset: int) -> int:
            self.bytes_read[self._ranks[threading.get_ident()]] += len(buffer)
            return plain(files, handle, buffer, offset)  # type: ignore[operator,no-any-return]

        monkeypatch.setattr(LocalFileSystem, "read", read)

    def reasons(self) -> list[str]:
        records = read_journal(self.directory / "journal.jsonl")
        return [record["reason"] for record in records if record["event"] == "rejected"]

    def _job(self) -> TrainingJob:
        data = ArrayData(np.zeros((8, 1)), np.zeros(8))
        request = Request(data, None, 8, 1, keep=2)
        return describe_job(request, self._config(WorkerId(0), 1), self.numerics)

    def _config(self, worker: WorkerId, ranks: int) -> WorkerConfig:
        return WorkerConfig(
            worker=worker,
            generation=2,
            workers=tuple(map(WorkerId, range(ranks))),
            capacity=ranks,
            run_id="run",
            run_dir=str(self.directory),
            microbatches=2,
            seed=0,
            threads=1,
            heartbeat_timeout_s=1.0,
            script="",
        )

    def _context(self, communicator: FakeCommunicator) -> WorkerContext:
        config = self._config(WorkerId(communicator.rank), communicator.size)
        journal = journal_of(config)
        injector = FaultInjector(
            config.worker, FaultPlan(), announce=lambda visit, kind: None, strike=lambda kind: None
        )
        page = HeartbeatPage.create()
        return WorkerContext(config, communicator, journal, page, injector, lambda report: None)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    found = Run(tmp_path)
    monkeypatch.setattr("holdfast.runtime.restoring._numerics_of", lambda _: found.numerics)
    return found


@pytest.mark.parametrize(("ranks", "writers"), [(1, 3), (3, 1), (4, 4), (3, 8)])
def test_everyone_gets_the_newest_state(run: Run, ranks: int, writers: int) -> None:
    run.save(10, 1.0, writers)
    run.save(20, 2.0, writers)

    assert run.restore(ranks) == [(20, 2.0)] * ranks
    assert run.reasons() == []


def test_each_worker_reads_its_part_of_the_shards(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = run.save(10, 1.0, writers=4)
    manifest = (directory / "MANIFEST.json").stat().st_size
    run.count(LocalFileSystem.read, monkeypatch)

    run.restore(ranks=4)

    shards = sorted(path.stat().st_size + manifest for path in directory.glob("*.h5"))
    assert sorted(run.bytes_read.values()) == shards


def test_byte_that_one_finds_wrong_sends_all_to_the_older_step(run: Run) -> None:
    run.save(10, 1.0, writers=4)
    directory = run.save(20, 2.0, writers=4)
    shard = sorted(directory.glob("*.h5"))[2]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)

    assert run.restore(ranks=4) == [(10, 1.0)] * 4
    (reason,) = run.reasons()
    assert "in shard 2 have a wrong digest" in reason


def test_run_without_checkpoints_starts_fresh(run: Run) -> None:
    assert run.restore(ranks=2) == [None, None]


def test_run_whose_checkpoints_are_all_damaged_is_refused_by_all(run: Run) -> None:
    directory = run.save(10, 1.0, writers=2)
    (directory / "MANIFEST.json").write_bytes(b"{}\n")

    with pytest.raises(RecoveryImpossible, match="none of the 1 checkpoints"):
        run.restore(ranks=2)


def test_state_of_another_model_is_refused_before_it_is_read(run: Run) -> None:
    run.save(10, 1.0, writers=2)

    with pytest.raises(UsageError, match="holds another model's run: 'weights'"):
        run.restore(ranks=2, floats=7)
