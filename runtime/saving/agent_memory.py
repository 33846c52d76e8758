"""The snapshots that outlived their workers: the agent's memory as a second holder of one step.

The host's writer, which keeps the snapshots, mends a damaged step on the disk from them.  If
the disk is full or gone, it cannot take the step at all.  Then a worker maps the images and
reads the step straight from memory, like files.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.store.image_filesystem import ImageFileSystem
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.runtime.committing.kept_images import NAME
from holdfast.runtime.worker.context import WorkerContext


class AgentMemory:
    """The snapshots of the newest save that this worker's agent keeps; none without an agent."""

    def __init__(self, context: WorkerContext) -> None:
        self._run_dir = context.run_dir
        self._store = context.open_store()
        self._ask_agent = context.ask_agent

    @property
    def name(self) -> str:
        """The holder's name in messages."""
        return NAME

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
        manifest = Manifest.decode(answer["manifest"].encode(), here.key)
        images = _images(manifest, answer)
        files = ImageFileSystem(here.directory, manifest, images, here.key)
        return CheckpointStore(self._run_dir, files, here.key)

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
