"""One save in the process that writes it: its images in memory, and the durable ones.

No image is trusted: memory may change, and the worker may write its next snapshot into it.
Every use of an image compares it with the digests of its record.  A save may be complete
in memory but not durable, because the disk is full or gone.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.store.image_filesystem import ImageFileSystem
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.runtime.saving.snapshot import SavePlan, Snapshot
from holdfast.runtime.system.channel import FDS, Message


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A snapshot and its image; other processes can map the memory of ``fd`` as well."""

    snapshot: Snapshot
    image: memoryview
    fd: int

    @staticmethod
    def of(message: Message) -> HeldSnapshot:
        """Map the memory that came with a message, and own its descriptor.

        Raises:
            OSError: the memory cannot be mapped; then the descriptor is closed.
        """
        (fd,) = message[FDS]
        snapshot = Snapshot.of(message)
        try:
            memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        except OSError:
            os.close(fd)
            raise
        # Unmapped with its last view: after an error, the traceback still holds views.
        return HeldSnapshot(snapshot, memoryview(memory)[: snapshot.record.size], fd)

    def is_of_same_state(self, other: HeldSnapshot) -> bool:
        """Return whether both hold the same shard of equal states."""
        mine, theirs = self.snapshot, other.snapshot
        return (mine.record, mine.state_digest) == (theirs.record, theirs.state_digest)


@dataclass(slots=True)
class HeldSave:
    """The snapshots of a save, by the index of the shard: first copies, second copies, durable."""

    run_dir: Path
    plan: SavePlan
    store: CheckpointStore
    began: float = field(default_factory=time.monotonic)
    firsts: dict[int, HeldSnapshot] = field(default_factory=dict)
    seconds: dict[int, HeldSnapshot] = field(default_factory=dict)
    durable: dict[int, HeldSnapshot] = field(default_factory=dict)

    @staticmethod
    def begun_by(snapshot: Snapshot) -> HeldSave:
        """Return a new save, to which ``snapshot`` belongs.

        Raises ``KeyUnusable`` if the key is no longer at the path where the job found it.
        """
        key = snapshot.key_file.read() if snapshot.key_file else None
        store = CheckpointStore(snapshot.run_dir, key=key)
        return HeldSave(snapshot.run_dir, snapshot.plan, store)

    @property
    def step(self) -> int:
        """The step whose state is saved."""
        return self.plan.header.step

    @property
    def age(self) -> tuple[int, int]:
        """Generation and attempt; the later of two saves of a launch has the larger pair."""
        return self.plan.header.generation, self.plan.attempt

    @property
    def images(self) -> dict[int, HeldSnapshot]:
        """The best copy in memory of each shard: durable, else the first, else the second."""
        return {**self.seconds, **self.firsts, **self.durable}

    @property
    def is_complete(self) -> bool:
        """Whether all shards are in memory and belong to the same state."""
        images = self.images
        digests = {held.snapshot.state_digest for held in images.values()}
        return len(images) == self.plan.layout.writers and len(digests) == 1

    def lacking(self) -> list[HeldSnapshot]:
        """Return the best copies of shards that are not durable."""
        return [held for index, held in self.images.items() if index not in self.durable]

    def manifest(self) -> Manifest:
        """Return the manifest; raises ``CommitRefused`` unless the save is complete."""
        return self.plan.manifest([held.snapshot.record for held in self.images.values()])

    def as_store(self) -> CheckpointStore:
        """Return the images of a complete save as a second holder of it."""
        images = {index: held.image for index, held in self.images.items()}
        key = self.store.key
        files = ImageFileSystem(self.store.directory, self.manifest(), images, key)
        return CheckpointStore(self.run_dir, files, key)

    def forget(self, held: HeldSnapshot) -> None:
        """Give the memory of one useless copy back."""
        for copies in (self.firsts, self.seconds, self.durable):
            if copies.get(held.snapshot.record.index) is held:
                del copies[held.snapshot.record.index]
        os.close(held.fd)

    def forget_copies(self) -> None:
        """Give the memory of all but the best copies back."""
        best = self.images
        for held in (*self.firsts.values(), *self.seconds.values()):
            if best[held.snapshot.record.index] is not held:
                self.forget(held)

    def close(self) -> None:
        """Give the memory back; it is freed with its last view."""
        for held in (*self.firsts.values(), *self.seconds.values()):
            os.close(held.fd)
        for copies in (self.firsts, self.seconds, self.durable):
            copies.clear()
