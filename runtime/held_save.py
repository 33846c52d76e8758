"""One save as the process that writes it holds it: images in memory, and what of it is durable.

Nothing in an image is believed, since memory may change and its worker may write the next
snapshot into it: whoever uses one compares it with the digests that its record has.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.checkpoint.image_filesystem import ImageFileSystem
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.channel import FDS, Message
from holdfast.runtime.snapshot import SavePlan, Snapshot


@dataclass(frozen=True, slots=True)
class HeldSnapshot:
    """A snapshot and its image; the memory stays as long as somebody has this."""

    snapshot: Snapshot
    image: memoryview

    @staticmethod
    def of(message: Message) -> HeldSnapshot:
        """Map the memory that came with a message, and close its descriptor.

        Raises:
            OSError: it cannot be mapped.
        """
        (fd,) = message[FDS]
        snapshot = Snapshot.of(message)
        try:
            memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        return HeldSnapshot(snapshot, memoryview(memory)[: snapshot.record.size])

    def is_of_same_state(self, other: HeldSnapshot) -> bool:
        """Return whether both are of one shard, and of states that are alike."""
        mine, theirs = self.snapshot, other.snapshot
        return (mine.record, mine.state_digest) == (theirs.record, theirs.state_digest)


@dataclass(slots=True)
class HeldSave:
    """What there is of a save: shards that are durable, and second copies, by index."""

    run_dir: Path
    plan: SavePlan
    began: float = field(default_factory=time.monotonic)
    durable: dict[int, HeldSnapshot] = field(default_factory=dict)
    seconds: dict[int, HeldSnapshot] = field(default_factory=dict)

    @staticmethod
    def begun_by(snapshot: Snapshot) -> HeldSave:
        """Return the save that a snapshot is the first one of."""
        return HeldSave(snapshot.run_dir, snapshot.plan)

    @property
    def step(self) -> int:
        """The step whose state is saved."""
        return self.plan.header.step

    @property
    def age(self) -> tuple[int, int]:
        """What is larger for the later of two saves of a launch."""
        return self.plan.header.generation, self.plan.attempt

    @property
    def is_whole(self) -> bool:
        """Whether all shards are durable, and of one and the same state."""
        digests = {held.snapshot.state_digest for held in self.durable.values()}
        return len(self.durable) == self.plan.layout.writers and len(digests) == 1

    def spare_copies(self) -> Iterator[HeldSnapshot]:
        """Yield second copies of the shards that are not durable."""
        for index, held in self.seconds.items():
            if index not in self.durable:
                yield held

    def manifest(self) -> Manifest:
        """Return the manifest; raises ``CommitRefused`` unless the save is whole."""
        return self.plan.manifest([held.snapshot.record for held in self.durable.values()])

    def as_store(self) -> CheckpointStore:
        """Return the images of a whole save as a second holder of it."""
        images = {index: held.image for index, held in self.durable.items()}
        directory = CheckpointStore(self.run_dir).directory
        files = ImageFileSystem(directory, self.manifest(), images)
        return CheckpointStore(self.run_dir, files)
