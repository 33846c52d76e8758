"""Mends that rank 0 orders of the host's writer, which alone changes the checkpoints.

Rank 0 reads what second holders have, and nothing more.  If the writer dies while it mends,
the restore goes on from what verifies, and the next order finds another writer.

One holder is the agent's memory, with the snapshots that outlived their workers.  The writer keeps
them, and mends a damaged step on the disk from them.  If the disk is full or gone, it cannot take
the step at all.  Then a worker maps the images and reads the step straight from memory, like files.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.image_map import ImageFileSystem
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.repair import MendResult
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.options.worker_config import WorkerConfig
from holdfast.runtime.saving.agent_saver import ContextReport
from holdfast.runtime.saving.held_save import KeptImages
from holdfast.runtime.saving.mending import (
    Holder,
    KnownHolders,
    Mender,
    Mirror,
    Report,
    mirrors,
    tell_failure,
)
from holdfast.runtime.saving.plan import MendOrder
from holdfast.runtime.system.codec import from_plain, to_plain
from holdfast.runtime.worker.context import WorkerContext

_WRITER = "the host's writer"


class Mends(Protocol):
    """The second holders of a run, as a restore uses them."""

    @property
    def has_holders(self) -> bool:
        """Whether the run has a second holder; the same on all workers."""

    def steps(self) -> frozenset[int]:
        """Return the steps that any holder has; a useless holder is not used again."""

    def mend(self, step: int) -> MendResult | None:
        """Make a step whole; return None if it cannot be."""


def mends_of(context: WorkerContext, memory: AgentMemory) -> Mends:
    """Return the mends of a run: by the host's writer, or here if there is no agent."""
    config, report = context.config, ContextReport(context)
    copies = mirrors(context.open_store(), config.options.repair_from, config.run_id)
    if context.ask_agent is None:
        return Mender(report, copies)
    return OrderedMends(config, context.ask_agent, (memory, *copies), report)


class OrderedMends(KnownHolders[Holder]):
    """The second holders of a run, as a worker with an agent uses them."""

    def __init__(
        self,
        config: WorkerConfig,
        ask_agent: Callable[[dict[str, object]], dict[str, Any]],
        holders: tuple[Holder, ...],
        report: Report,
    ) -> None:
        super().__init__(report, holders)
        self._config = config
        self._ask = ask_agent

    def mend(self, step: int) -> MendResult | None:
        """Have a step made whole; return None if the writer cannot, which tells why."""
        copies = tuple(Path(h.name) for h in self._holders if isinstance(h, Mirror))
        order = MendOrder(step, self._config, copies)
        answer = self._ask({"kind": "mend", **to_plain(order)})
        found = answer.get("result")
        if found is not None:
            return from_plain(MendResult, found)
        if answer.get("reason"):
            tell_failure(self._report, _WRITER, step, answer["reason"])
        return None


class AgentMemory:
    """The snapshots of the newest save that this worker's agent keeps; none without an agent."""

    name = KeptImages.name

    def __init__(self, context: WorkerContext) -> None:
        self._run_dir = context.run_dir
        self._store = context.open_store()
        self._ask_agent = context.ask_agent

    def steps(self) -> tuple[int, ...]:
        """Return the step that the snapshots hold, or nothing if there are none."""
        step = self._ask({"kind": "keeps"}).get("step")
        return () if step is None else (int(step),)

    def open(self, step: int) -> CheckpointStore:
        """Return the snapshots of a step, to be read like a run directory's checkpoints.

        Raises ``CheckpointInvalid`` if there are none.
        """
        answer = self._ask({"kind": "open"})
        if answer.get("step") != step:
            raise CheckpointInvalid(step, "there are no snapshots of it in memory")
        here = self._store
        manifest = Manifest.decode(answer["manifest"].encode())
        images = _images(manifest, answer)
        files = ImageFileSystem(here.directory, manifest, images)
        return CheckpointStore(self._run_dir, files)

    def _ask(self, question: dict[str, object]) -> dict[str, Any]:
        return {} if self._ask_agent is None else self._ask_agent(question)


def _images(manifest: Manifest, answer: dict[str, Any]) -> dict[int, memoryview]:
    """Map the images in the memory of the host's writer, a process of this host and user."""
    memory = _map(manifest.step, Path(f"/proc/{answer['pid']}/fd/{answer['fd']}"))
    bases = answer["bases"]
    return {
        shard.index: memory[bases[shard.index] : bases[shard.index] + shard.size]
        for shard in manifest.shards
    }


def _map(step: int, path: Path) -> memoryview:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ))
        finally:
            os.close(fd)
    except (OSError, ValueError) as error:
        raise CheckpointInvalid(step, f"its snapshots cannot be mapped: {error}") from error
