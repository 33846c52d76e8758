"""A state that lies copied in memory, and a committer for it, without any worker."""

from __future__ import annotations

import mmap
import time
from pathlib import Path

from committing_report import StrikeResult

from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.run_directory import FORMAT, RunRecord
from holdfast.runtime.saving.committer import Committer, HeldSave
from holdfast.runtime.saving.plan import SavePlan, SaveTerms
from holdfast.runtime.saving.save_memory import HostBuffers
from holdfast.runtime.saving.save_messages import SaveCopied, SaveTicket
from holdfast.runtime.saving.saver import shard_count
from saves.state import State, size_of

RUN_ID = "bench"
FIRST = WorkerId(0)
KEEP_ALL = 10**6


def plan_of(run_dir: Path, state: State, keep: int = KEEP_ALL) -> SavePlan:
    """Return the plan of saves of ``state``, with as many shards as a job has."""
    layout = ShardLayout(specs_of(state), shard_count(size_of(state)))
    options = JobOptions(Path("bench.py"), run_dir)
    record = RunRecord(RUN_ID, FORMAT, 0.0, microbatches=1, seed=0, threads=1)
    config = WorkerConfig(options, FIRST, 1, (FIRST,), record)
    return SavePlan(config, layout, SaveTerms(Retention(keep)))


def ticket_of(plan: SavePlan, step: int, parts: int = 1, buffers: int = 1) -> SaveTicket:
    """Return the ticket of the save of ``step``, which has the same number."""
    return SaveTicket(1, 1, step, step, parts, time.monotonic(), step % buffers, plan.layout_id)


class CopiedState:
    """One buffer with the state in it, which can be committed as any step."""

    def __init__(self, state: State) -> None:
        plan = plan_of(Path(), state)
        self._map = plan.image_map()
        self._state = state
        self._share = ShareImage(self._map, share_of(self._map, 0, 1), RUN_ID)
        self._step = 0
        self._buffers = HostBuffers([mmap.mmap(-1, self._map.size)])

    def held(self, plan: SavePlan, step: int) -> HeldSave:
        """Return the state as a complete save of ``step``; it is copied if another step was."""
        ticket, memory = ticket_of(plan, step), self._buffers[0]
        if step != self._step:
            self._step = step
            header = plan.header(ticket)
            self._share.copy(memory, self._state, header)
            self._share.describe(memory, self._state, header)
        return HeldSave.of(plan, self._map, SaveCopied(ticket, frozenset()), {}, memory)

    def close(self) -> None:
        """Give the memory back."""
        self._buffers.close()


def committer(plan: SavePlan) -> Committer:
    """Return a committer that reports nothing."""
    return Committer(plan, StrikeResult())
