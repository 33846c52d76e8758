"""Workers of one host, as far as they save: a small state, the memory for it, and messages."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from configs import worker_config

from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.shares import note_part
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensors, specs_of
from holdfast.recovery.placement import WHOLE_SAVE, SavePart
from holdfast.recovery.saves import CommitSave, PartHeld, SaveTicket, WriteShare
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.committer import Committer, PlannedMemory
from holdfast.runtime.saving.plan import SavePlan, SaveRequest, SaveTerms
from holdfast.runtime.saving.save_memory import HostBuffers, SaveMemory
from holdfast.runtime.saving.save_messages import AskMemory, PartCopied, PlanSaves
from holdfast.runtime.system.codec import encode

RUN = "run"
LAUNCH = 7
STEP = 30


def state_of(step: int) -> Tensors:
    """Return the state after a step, of about 36 KB."""
    return {
        "a": np.arange(9000, dtype=np.float32) + step,
        "b": np.arange(5) * step,
        "c": np.array(bool(step % 20)),
    }


def plan_of(run_dir: Path, shards: int = 2, **changes: Any) -> SavePlan:
    """Return a plan for ``state_of``; ``changes`` are fields of it or of what is in it."""
    usual = {"retention": Retention(100), "fields": {"stage": 0}, "numerics": {"threads": 1}}
    terms = {name: changes.pop(name, value) for name, value in usual.items()}
    layout = changes.pop("layout", None) or ShardLayout(specs_of(state_of(0)), shards)
    unsound = frozenset(changes.pop("unsound", ()))
    config = worker_config(run_dir=run_dir, **{"run_id": RUN, "generation": LAUNCH, **changes})
    return SavePlan(config, layout, SaveTerms(**terms), unsound)


def begin_run(run_dir: Path, run_id: str = RUN) -> None:
    """Make a run directory the run's, as its job does: else nothing is changed there."""
    directory = RunDirectory(run_dir)
    directory.prepare()
    if directory.load_record() is None:
        directory.create_record(RunRecord(run_id, FORMAT, 0.0, microbatches=1, seed=0, threads=1))


def cursor_of(step: int) -> str:
    """Return the cursor that the first worker tells with a save."""
    return encode({"epoch": step}).decode()


def request_of(step: int, attempt: int, part: SavePart = WHOLE_SAVE) -> SaveRequest:
    """Return a worker's part in a save of the first world."""
    ticket = SaveTicket(LAUNCH, LAUNCH, step, attempt, part.hosts)
    return SaveRequest(ticket, part, {"epoch": step}, began=0.0)


class Workers:
    """All workers of one host, with the memory that their agent has given them."""

    def __init__(
        self,
        plan: SavePlan,
        buffers: int = 2,
        launch: int = LAUNCH,
        *,
        share: int = 0,
        hosts: int = 1,
        memory: SaveMemory | None = None,
    ) -> None:
        begin_run(plan.config.options.run_dir, plan.config.record.run_id)
        self.plan = plan
        self.launch = launch
        self.share, self.hosts = share, hosts
        self.image_map = image_map = plan.image_map(share, hosts)
        self.layout = plan.layout_id(share, hosts)
        self._own = contextlib.ExitStack()
        self.agent = memory or self._own.enter_context(contextlib.closing(SaveMemory(lambda: ())))
        """That of the agent, which may be that of other launches, too."""
        most = buffers * max(image_map.nbytes, 1)
        question = AskMemory(self.layout, image_map.size, image_map.nbytes, most)
        self.given, self.is_new = self.agent.buffers(launch, question)
        if memory is None:
            self.agent.plan(launch, self.plan_message())
        self.buffers = HostBuffers.of_agent(map(os.dup, self.given.fds))
        self._shares: dict[tuple[int, int], ShareImage] = {}

    def plan_message(self, generation: int = 0) -> PlanSaves:
        """Return the plan as the first worker of the host tells it, for a world."""
        plan = encode(self.plan).decode()
        return PlanSaves(generation or self.launch, self.layout, plan, self.share, self.hosts)

    def ticket(self, step: int, attempt: int, generation: int = 0) -> SaveTicket:
        """Return the ticket of a save, of the launch's first world if none is given."""
        return SaveTicket(self.launch, generation or self.launch, step, attempt, self.hosts)

    def view(self, attempt: int) -> memoryview:
        """Return the buffer that a save is copied into."""
        return self.buffers[self.buffers.place_of(attempt)]

    def copy(
        self, ticket: SaveTicket, part: int = 0, parts: int = 2, digest: str = ""
    ) -> PartCopied:
        """Copy one part of the state of the ticket's step; return what its worker tells."""
        share, memory = self.begin_copy(ticket, part, parts), self.view(ticket.attempt)
        share.describe(memory, state_of(ticket.step), self.plan.header(ticket))
        note_part(memory, part, parts, ticket.key, digest or f"{ticket.step:032x}")
        is_first = self.share == part == 0
        return PartCopied(ticket, self.share, 0.0, cursor_of(ticket.step) if is_first else None)

    def begin_copy(self, ticket: SaveTicket, part: int, parts: int = 2) -> ShareImage:
        """Copy the bytes of a part, as a worker that dies before it says so."""
        if (part, parts) not in self._shares:
            share = share_of(self.image_map, part, parts)
            self._shares[part, parts] = ShareImage(self.image_map, share, RUN)
        found = self._shares[part, parts]
        found.copy(self.view(ticket.attempt), state_of(ticket.step), self.plan.header(ticket))
        return found

    def hold(self, ticket: SaveTicket, parts: int = 2, digests: Sequence[str] = ()) -> PartHeld:
        """Copy all parts of a save, in order; return what the agent tells."""
        told = digests or [""] * parts
        copied = [self.copy(ticket, part, parts, told[part]) for part in range(parts)]
        (held,) = filter(None, map(self.agent.take_part, copied))
        return held

    def flip_a_bit(self, attempt: int, shard: int = 0, offset: int = 5000) -> None:
        """Change one bit of a shard's image."""
        self.view(attempt)[self.image_map.bases[shard] + offset] ^= 16

    def flip_a_record(self, attempt: int, shard: int = 0, offset: int = 3) -> None:
        """Change one bit of a shard's records."""
        self.view(attempt)[self.image_map.records[shard] + offset] ^= 16

    def close(self) -> None:
        """Give the memory back."""
        with contextlib.suppress(BufferError):  # the traceback of a failure still looks at it
            self.buffers.close()
        self._own.close()


def commit(committer: Committer, workers: Workers, ticket: SaveTicket) -> None:
    """Commit a save that is in the memory of a host which saves alone.

    Raises ``CheckpointError`` or ``OSError``.
    """
    found = PlannedMemory(workers.plan, workers.image_map)
    records = committer.write(WriteShare(ticket, 0, ""), found, workers.view(ticket.attempt))
    work = CommitSave(ticket, (records,), cursor_of(ticket.step), time.monotonic())
    committer.commit(work, workers.plan)


def saved_steps(run_dir: Path) -> tuple[int, ...]:
    """Return the visible steps, newest first, all of which hold the state of their step."""
    store = CheckpointStore(run_dir)
    for step in store.steps():
        verify(store, step)
    return store.steps()


def verify(store: CheckpointStore, step: int) -> None:
    """Fail unless a step verifies, and is the state of the step with its cursor."""
    restored = restore(store, step)
    assert (restored.manifest.run_id, restored.manifest.step) == (RUN, step)
    assert restored.manifest.cursor == {"stage": 0, "step": step, "epoch": step}
    for name, tensor in state_of(step).items():
        assert restored.state[name].tobytes() == tensor.tobytes()
