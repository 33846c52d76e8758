"""Workers of one host, as far as they save: a small state, the memory for it, and messages."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from configs import worker_config

from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import ShardLayout, Tensors, specs_of
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.committer import HeldSave
from holdfast.runtime.saving.plan import SavePlan, SaveRequest, SaveTerms
from holdfast.runtime.saving.save_messages import PartCopied, SaveCopied, SaveTicket, UseMemory
from holdfast.runtime.system.own_process import sealed_memory

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


def request_of(step: int, attempt: int, part: int = 0, parts: int = 1) -> SaveRequest:
    """Return a worker's part in a save of the first world."""
    ticket = SaveTicket(LAUNCH, LAUNCH, step, attempt, parts, 0.0)
    return SaveRequest(ticket, part, {"epoch": step})


@dataclass(frozen=True)
class Copied:
    """What a worker tells when it has copied its part, and the cursor if it is part 0."""

    message: PartCopied
    content: bytes | None

    def sent(self) -> tuple[PartCopied, tuple[int, ...]]:
        """Return the message, and memory with the cursor if there is one."""
        return self.message, () if self.content is None else (memory_of(self.content),)


def whole(copied: Sequence[Copied]) -> tuple[SaveCopied, bytes]:
    """Return what an agent tells its writer once all parts of a save are there, and the cursor."""
    digests = frozenset(part.message.digest for part in copied)
    (cursor,) = (part.content for part in copied if part.content is not None)
    return SaveCopied(copied[0].message.ticket, digests), cursor


def memory_of(content: bytes) -> int:
    """Return the descriptor of memory with this content."""
    fd = os.memfd_create("holdfast-message", os.MFD_CLOEXEC)
    os.pwrite(fd, content, 0)
    return fd


class Workers:
    """All workers of a host, with the memory that their agent has given them."""

    def __init__(
        self,
        plan: SavePlan,
        buffers: int = 2,
        launch: int = LAUNCH,
        state: Callable[[int], Tensors] = state_of,
    ) -> None:
        begin_run(plan.config.options.run_dir, plan.config.record.run_id)
        self.plan = plan
        self.launch = launch
        self._state_of = state
        self.image_map = plan.image_map()
        size = self.image_map.size
        self.fds = [sealed_memory("holdfast-save", size) for _ in range(buffers)]
        self._maps = [mmap.mmap(fd, 0) for fd in self.fds]
        self.buffers = [memoryview(found) for found in self._maps]
        self._shares: dict[tuple[int, int], ShareImage] = {}

    @property
    def memory(self) -> UseMemory:
        """What the agent tells the writer with the descriptors."""
        return UseMemory(self.launch, self.plan.layout_id)

    def ticket(self, step: int, attempt: int, parts: int = 2, generation: int = 0) -> SaveTicket:
        """Return the ticket of a save, of the launch's first generation if none is given."""
        generation = generation or self.launch
        buffer = attempt % len(self.buffers)
        layout = self.plan.layout_id
        return SaveTicket(
            self.launch, generation, step, attempt, parts, 0.0, buffer=buffer, layout=layout
        )

    def copy(self, ticket: SaveTicket, part: int, digest: str = "") -> Copied:
        """Copy one part of the state of the ticket's step; return what its worker tells."""
        share = self._share(part, ticket.parts)
        memory, state = self.buffers[ticket.buffer], self._state_of(ticket.step)
        header = self.plan.header(ticket)
        share.copy(memory, state, header)
        share.describe(memory, state, header)
        message = PartCopied(ticket, part, digest or f"{ticket.step:04x}")
        return Copied(message, b'{"epoch":%d}' % ticket.step if part == 0 else None)

    def copy_all(self, ticket: SaveTicket, digests: Sequence[str] = ()) -> list[Copied]:
        """Copy all parts of a save, in order."""
        told = digests or [""] * ticket.parts
        return [self.copy(ticket, part, told[part]) for part in range(ticket.parts)]

    def held(self, step: int = STEP, attempt: int = 1) -> HeldSave:
        """Copy a save, and return it as the process that commits holds it."""
        ticket = self.ticket(step, attempt)
        copied, _ = whole(self.copy_all(ticket))
        memory = self.buffers[ticket.buffer]
        return HeldSave.of(self.plan, self.image_map, copied, {"epoch": step}, memory)

    def flip_a_bit(self, attempt: int, shard: int = 0, offset: int = 5000) -> None:
        """Change one bit of a shard's image."""
        self.buffers[attempt % len(self.buffers)][self.image_map.bases[shard] + offset] ^= 16

    def flip_a_record(self, attempt: int, shard: int = 0, offset: int = 3) -> None:
        """Change one bit of a shard's records."""
        self.buffers[attempt % len(self.buffers)][self.image_map.records[shard] + offset] ^= 16

    def close(self) -> None:
        """Give the memory back."""
        for view, found in zip(self.buffers, self._maps, strict=True):
            view.release()
            with contextlib.suppress(BufferError):  # a save that a test holds still looks at it
                found.close()
        for fd in self.fds:
            os.close(fd)

    def _share(self, part: int, parts: int) -> ShareImage:
        if (part, parts) not in self._shares:
            share = share_of(self.image_map, part, parts)
            self._shares[part, parts] = ShareImage(self.image_map, share, RUN)
        return self._shares[part, parts]


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
