"""A state that lies copied in memory, and a committer for it, without any worker."""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from committing_report import StrikeResult

from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.tensor import ShardLayout, specs_of
from holdfast.recovery.placement import WHOLE_SAVE
from holdfast.recovery.saves import CommitSave, SaveTicket, ShareWritten, WriteShare
from holdfast.recovery.world import WorkerId
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.agent_saver import AgentSaver
from holdfast.runtime.saving.committer import Committer, PlannedMemory
from holdfast.runtime.saving.plan import SavePlan, SaveRequest, SaveTerms
from holdfast.runtime.saving.save_memory import HostBuffers
from holdfast.runtime.saving.save_messages import OfWorker
from holdfast.runtime.saving.saver import shard_count
from holdfast.runtime.system.channel import Message, MessageKinds
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.injector import FaultInjector
from saves.state import State, size_of

RUN_ID = "bench"
FIRST = WorkerId(0)
KEEP_ALL = 10**6
_OF_WORKER: MessageKinds[OfWorker] = MessageKinds(OfWorker)


def plan_of(run_dir: Path, state: State, keep: int = KEEP_ALL, hosts: int = 1) -> SavePlan:
    """Return the plan of saves of ``state``, with as many shards as a job has."""
    layout = ShardLayout(specs_of(state), shard_count(size_of(state), hosts))
    options = JobOptions(Path("bench.py"), run_dir)
    record = RunRecord(RUN_ID, FORMAT, 0.0, microbatches=1, seed=0, threads=1)
    config = WorkerConfig(options, FIRST, 1, (FIRST,), record)
    return SavePlan(config, layout, SaveTerms(Retention(keep)))


def ticket_of(step: int, hosts: int = 1) -> SaveTicket:
    """Return the ticket of the save of ``step``, which has the same number."""
    return SaveTicket(1, 1, step, step, hosts)


def context_of(
    run_dir: Path,
    workers: int,
    page: WorkerStatus,
    tell: Callable[[Message], None],
    answer: Callable[[Message], dict[str, Any]],
) -> WorkerContext:
    """Return the surroundings of worker 0, as far as a save needs them."""
    config = WorkerConfig(
        worker=FIRST,
        generation=1,
        workers=tuple(map(WorkerId, range(workers))),
        record=RunRecord(RUN_ID, FORMAT, 0.0, microbatches=workers, seed=0, threads=1),
        options=JobOptions(Path("bench"), run_dir, workers=workers),
    )
    return WorkerContext(
        config,
        cast("Any", None),  # a copy needs no peer
        Journal(RunDirectory(run_dir).journal_path, run_id=RUN_ID, source="worker 0"),
        page,
        FaultInjector(config.worker, {}, announce=lambda visit, kind: None),
        lambda message, fds=(): tell(message),
        answer,
    )


class CopiedState:
    """One buffer with what a host holds of the state, which can be committed as any step."""

    def __init__(self, state: State, host: int = 0, hosts: int = 1) -> None:
        self._host, self._hosts = host, hosts
        self._plan = plan_of(Path(), state, hosts=hosts)
        self._map = self._plan.image_map(host, hosts)
        self._state = state
        self._share = ShareImage(self._map, share_of(self._map, 0, 1), RUN_ID)
        self._step = 0
        self._buffers = HostBuffers([mmap.mmap(-1, self._map.size)])

    def copy(self, step: int) -> None:
        """Copy the state as that of ``step``, unless it is there already."""
        if step != self._step:
            self._step, memory = step, self._buffers[0]
            header = self._plan.header(ticket_of(step, self._hosts))
            self._share.copy(memory, self._state, header)
            self._share.describe(memory, self._state, header)

    def write(self, committer: Committer) -> tuple[str, ...]:
        """Write the share of the host; return its records."""
        work = WriteShare(ticket_of(self._step, self._hosts), self._host, "")
        found = PlannedMemory(committer.plan, self._map)
        return committer.write(work, found, self._buffers[0])

    def commit(self, committer: Committer) -> None:
        """Write what was copied, and commit it."""
        commit_shares(committer, self._step, [self.write(committer)])

    def close(self) -> None:
        """Give the memory back."""
        self._buffers.close()


def commit_shares(committer: Committer, step: int, shares: Sequence[tuple[str, ...]]) -> None:
    """Commit a save whose shares are written, by their records."""
    ticket = ticket_of(step, len(shares))
    work = CommitSave(ticket, tuple(shares), "{}", time.monotonic())
    committer.commit(work, committer.plan)


def save_without_memory(state: State, committer: Committer, step: int) -> None:
    """Let a worker write the shards from its own state, and commit them."""
    plan, ticket = committer.plan, ticket_of(step)
    page, told = WorkerStatus.create(), list[Message]()
    way = AgentSaver(context_of(plan.config.options.run_dir, 1, page, told.append, lambda _: {}))
    way.prepare(plan, WHOLE_SAVE, generation=1)
    save = way.begin(SaveRequest(ticket, WHOLE_SAVE, {}, began=time.monotonic()), state)
    save.hand_over(state, "00" * 16)
    save.compared()
    written = _OF_WORKER.decode(told[-1])
    assert isinstance(written, ShareWritten), written
    commit_shares(committer, step, [written.records])
    way.close()
    page.close()


def committer(plan: SavePlan, files: FileSystem | None = None) -> Committer:
    """Return a committer that reports nothing, on other files than those of the disk if given."""
    return Committer(plan, StrikeResult(), files=files)
