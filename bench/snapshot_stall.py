"""How long a snapshot stops the training, against copying the same tensors.

The calls of the training loop are timed: the plan of the save, the copy with digests of
its pieces, and the hand-over to a thread.  That thread digests the whole state for the
comparison of replicas and sends the snapshot off.  It works beside the next step; its time
is printed, too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
from checkpoint_state import State

from holdfast.checkpoint.format.layout import ShardLayout, specs_of
from holdfast.checkpoint.format.record import Header
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.recovery.fault import FaultPlan
from holdfast.recovery.world import WorkerId
from holdfast.runtime.exchange.local_communicator import LocalCommunicator
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.saving.memory_check import MemoryCheck
from holdfast.runtime.saving.shard_writers import Shards
from holdfast.runtime.saving.snapshot import SavePlan
from holdfast.runtime.saving.snapshot_place import SnapshotMemory
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.worker.context import WorkerContext, journal_of
from holdfast.runtime.worker.injector import FaultInjector

COPIES, FLAT, OURS = "np.copyto, a tensor", "np.copyto, all at once", "holdfast snapshot"
BESIDE = "  beside the next step"


@dataclass(frozen=True, slots=True)
class Stalls:
    """Seconds of each way to copy what one of ``writers`` workers saves, one entry a round."""

    seconds: dict[str, list[float]]
    size_bytes: int

    @property
    def copies(self) -> list[float]:
        """Seconds of copying tensor by tensor."""
        return self.seconds[COPIES]

    @property
    def ours(self) -> list[float]:
        """Seconds that training stands still."""
        return self.seconds[OURS]


class _Trainer:
    """The saving calls of worker 0, with an agent that has written everything at once."""

    def __init__(self, run_dir: Path, state: State, layout: ShardLayout) -> None:
        self._state, self._layout = state, layout
        self._page = HeartbeatPage.create()
        self._thread = ThreadPoolExecutor(1)
        context = _context(run_dir, layout.writers, self._page)
        self._shards = Shards(context, CheckpointStore(run_dir), self._thread)
        world = SimpleNamespace(communicator=SimpleNamespace(size=layout.writers))
        self._check = MemoryCheck(context, cast("Any", world), cast("Any", None))
        self._attempt = 0

    def begin(self) -> None:
        """Begin a snapshot; training waits for this."""
        self._attempt += 1
        plan = SavePlan(Header("bench", 1, 1), self._attempt, self._layout, {}, {})
        shard = self._shards.begin(plan, (0,), self._state)
        self._check.take(1, self._state, then=shard.hand_over)

    def finish(self) -> None:
        """Wait for the thread that goes on with it beside the next step."""
        self._check.world_changed()
        self._page.answer_save(self._attempt, is_durable=True)

    def close(self) -> None:
        """End its thread."""
        self._thread.shutdown()
        self._page.close()


def measure_stalls(state: State, rounds: int, writers: int = 2) -> Stalls:
    """Time all ways in turn, each into shared memory that was touched before.

    Worker 0 of ``writers`` copies its slice.  "All at once" copies the slice as one array.
    glibc bypasses the cache for copies of more than three quarters of the cache's size.  A
    state of many tensors has no tensor of that size.
    """
    layout = ShardLayout(specs_of(state), writers)
    mine = [
        state[piece.spec.name].reshape(-1)[piece.start : piece.stop] for piece in layout.pieces(0)
    ]
    size = sum(part.nbytes for part in mine)
    memory = SnapshotMemory(size)
    with tempfile.TemporaryDirectory() as name:
        trainer = _Trainer(Path(name), state, layout)
        _, buffer = memory.next()
        seconds = _time_in_turn(_copies(mine, buffer), trainer, rounds)
        trainer.close()
    memory.close()
    return Stalls(seconds, size)


def _context(run_dir: Path, workers: int, page: HeartbeatPage) -> WorkerContext:
    config = WorkerConfig(
        worker=WorkerId(0),
        generation=1,
        workers=tuple(map(WorkerId, range(workers))),
        run_id="bench",
        microbatches=workers,
        seed=0,
        threads=1,
        options=JobOptions(Path("bench"), run_dir, workers=workers),
    )
    return WorkerContext(
        config,
        LocalCommunicator(),
        journal_of(config),
        page,
        FaultInjector(config.worker, FaultPlan(), announce=lambda visit, kind: None),
        lambda report: None,
        send_snapshot=lambda snapshot, fds: None,
    )


def _copies(mine: list[np.ndarray], buffer: memoryview) -> dict[str, Callable[[], None]]:
    target = np.frombuffer(buffer, np.uint8)
    flat = np.concatenate([part.view(np.uint8) for part in mine])
    return {
        COPIES: lambda: _copy_each(mine, target),
        FLAT: lambda: np.copyto(target[: flat.size], flat),
    }


def _copy_each(mine: list[np.ndarray], target: np.ndarray) -> None:
    position = 0
    for part in mine:
        stop = position + part.nbytes
        np.copyto(target[position:stop].view(part.dtype), part)
        position = stop


def _time_in_turn(
    copies: dict[str, Callable[[], None]], trainer: _Trainer, rounds: int
) -> dict[str, list[float]]:
    calls = {**copies, OURS: trainer.begin}
    seconds: dict[str, list[float]] = {name: [] for name in (*calls, BESIDE)}
    for turn in range(-2, rounds):  # both buffers of a snapshot are taken before
        for name in calls if turn % 2 else reversed(calls):
            took = _time(calls[name])
            beside = _time(trainer.finish)
            if turn >= 0:
                seconds[name].append(took)
            if turn >= 0 and name == OURS:
                seconds[BESIDE].append(beside)
    return seconds


def _time(call: Callable[[], None]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
