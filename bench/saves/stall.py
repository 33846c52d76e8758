"""How long a snapshot stops the training, against copying the same tensors.

The calls of the training loop are timed: the copy of the worker's share into memory of the
agent, and the hand-over to a thread.  That thread digests the share, and the whole state for
the comparison of replicas.  It works beside the next step; its time is printed, too.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.tensor import bytes_of
from holdfast.recovery.placement import SavePart
from holdfast.recovery.saves import SaveTicket
from holdfast.runtime.saving.agent_saver import AgentSaver
from holdfast.runtime.saving.plan import SaveRequest
from holdfast.runtime.saving.save_memory import HostBuffers
from holdfast.runtime.saving.saver import MemoryCheck
from holdfast.runtime.system.channel import FDS
from holdfast.runtime.system.own_process import sealed_memory
from holdfast.runtime.system.worker_status import WorkerStatus
from saves.committed_save import context_of, plan_of
from saves.state import State

COPIES, FLAT, OURS = "np.copyto, a tensor", "np.copyto, all at once", "holdfast snapshot"
BESIDE = "  beside the next step"


@dataclass(frozen=True, slots=True)
class Stalls:
    """Seconds of each way to copy what one of several workers saves, one entry a round."""

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

    def __init__(self, run_dir: Path, state: State, workers: int) -> None:
        self._state = state
        self._page = WorkerStatus.create()
        context = context_of(run_dir, workers, self._page, lambda _: None, _answer)
        self._way = AgentSaver(context)
        self._part = SavePart(parts=workers)
        self._way.prepare(plan_of(run_dir, state), self._part, generation=1, attempt=2)
        world = SimpleNamespace(communicator=SimpleNamespace(size=workers))
        self._check = MemoryCheck(context, cast("Any", world), cast("Any", None))
        self._attempt = 0

    def begin(self) -> None:
        """Begin a save; training waits for this."""
        self._attempt += 2  # as after a save that was durable: into the same memory
        ticket = SaveTicket(1, 1, 1, self._attempt)
        request = SaveRequest(ticket, self._part, {}, began=time.monotonic())
        mine = self._way.begin(request, self._state)
        self._check.take(1, self._state, then=mine.hand_over)

    def finish(self) -> None:
        """Wait for the thread that goes on with it beside the next step."""
        self._check.world_changed()
        self._page.answer_save(self._attempt, is_durable=True)

    def close(self) -> None:
        """Give its memory back."""
        self._way.close()
        self._page.close()


def measure_stalls(state: State, rounds: int, workers: int = 2) -> Stalls:
    """Time all ways in turn, each into shared memory that was touched before.

    Worker 0 of ``workers`` copies its share.  "All at once" copies the share as one array.
    glibc bypasses the cache for copies of more than three quarters of the cache's size.  A
    state of many tensors has no tensor of that size.
    """
    mine = _share_of(state, workers)
    size = sum(part.nbytes for part in mine)
    memory = HostBuffers.of_agent([sealed_memory("holdfast-bench", size)])
    with tempfile.TemporaryDirectory() as name:
        trainer = _Trainer(Path(name), state, workers)
        seconds = _time_in_turn(_copies(mine, memory[0]), trainer, rounds)
        trainer.close()
    return Stalls(seconds, size)


def _share_of(state: State, workers: int) -> list[np.ndarray]:
    """Return the bytes of the state that worker 0 copies."""
    image_map = plan_of(Path(), state).image_map(0, 1)
    found = []
    for stretch in share_of(image_map, 0, workers).stretches:
        piece = image_map.pieces[stretch.shard][stretch.piece]
        contents = bytes_of(state[piece.spec.name], piece.start, piece.stop)
        found.append(np.frombuffer(contents[stretch.start : stretch.stop], np.uint8))
    return found


def _answer(question: dict[str, object]) -> dict[str, Any]:
    """Give a worker memory, as its agent does."""
    size = cast("int", question["size"])
    return {FDS: [sealed_memory("holdfast-bench", size) for _ in range(2)]}


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
    for turn in range(-2, rounds):  # the first calls of all are not counted
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
