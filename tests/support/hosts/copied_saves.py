"""Workers' side of a save without workers: memory, plan and copied parts, as an agent sees them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from configs import worker_config
from host_saves import begin_run

from holdfast.checkpoint.image import ShareImage
from holdfast.checkpoint.image_map import share_of
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.tensor import ShardLayout, Tensors, specs_of
from holdfast.runtime.saving.plan import SavePlan, SaveTerms
from holdfast.runtime.saving.save_memory import HostBuffers
from holdfast.runtime.saving.save_messages import PartCopied, PlanSaves, SaveTicket, UseMemory
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.own_process import sealed_memory

STATE: Tensors = {"a": np.arange(9000, dtype=np.float32), "b": np.ones((3, 5), np.float64)}


def message_fd(content: object) -> int:
    """Return memory that holds ``content`` as JSON, or as it is if it is bytes."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    fd = os.memfd_create("holdfast-message", os.MFD_CLOEXEC)
    os.pwrite(fd, data, 0)
    return fd


class CopiedSaves:
    """The workers of one launch and layout; their parts are made one by one."""

    state: ClassVar[Tensors] = STATE

    def __init__(
        self, run_dir: Path, *, launch: int = 1, parts: int = 2, buffers: int = 2, shards: int = 2
    ) -> None:
        begin_run(run_dir)
        self.launch = launch
        self.parts = parts
        layout = ShardLayout(specs_of(self.state), shards)
        config = worker_config(run_dir=run_dir, run_id="run", generation=launch)
        self.plan = SavePlan(config, layout, SaveTerms(Retention(10)))
        self.image_map = self.plan.image_map()
        size = self.image_map.size
        self.fds = tuple(sealed_memory("holdfast-save", size) for _ in range(buffers))
        self._maps = HostBuffers.of_agent(os.dup(fd) for fd in self.fds)
        shares = [share_of(self.image_map, part, parts) for part in range(parts)]
        self._shares = [ShareImage(self.image_map, share, "run") for share in shares]

    @property
    def memory(self) -> UseMemory:
        """The message that tells the writer the memory."""
        return UseMemory(self.launch, self.plan.layout_id)

    @property
    def plan_message(self) -> tuple[PlanSaves, tuple[int, ...]]:
        """The message that tells the writer the plan."""
        return PlanSaves(1), (message_fd(encode(self.plan)),)

    def ticket(
        self, attempt: int, step: int | None = None, generation: int | None = None
    ) -> SaveTicket:
        """Return the ticket of a save; its step is ten times the attempt."""
        return SaveTicket(
            launch=self.launch,
            generation=self.launch if generation is None else generation,
            step=10 * attempt if step is None else step,
            attempt=attempt,
            parts=self.parts,
            buffer=attempt % len(self.fds),
            layout=self.plan.layout_id,
            began=time.monotonic(),
        )

    def part(self, ticket: SaveTicket, part: int) -> tuple[PartCopied, tuple[int, ...]]:
        """Copy a part of the state, and return the message that tells so."""
        share, memory = self._shares[part], self._maps[ticket.buffer]
        share.copy(memory, self.state, self.plan.header(ticket))
        share.describe(memory, self.state, self.plan.header(ticket))
        fds = (message_fd({"epoch": ticket.attempt}),) if part == 0 else ()
        return PartCopied(ticket, part, "00"), fds

    def save(self, attempt: int) -> Sequence[tuple[PartCopied, tuple[int, ...]]]:
        """Return the messages of all parts of a save."""
        ticket = self.ticket(attempt)
        return [self.part(ticket, part) for part in range(self.parts)]

    def close(self) -> None:
        """Give the memory back."""
        self._maps.close()
        for fd in self.fds:
            os.close(fd)
