"""One save in memory, as the process that commits it holds it.

No image is trusted: memory may change, and workers may copy their next save into it.  The
records are read once, when the last part arrives.  Every use of an image compares it with
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.checkpoint.errors import CheckpointError, CommitRefused
from holdfast.checkpoint.image_map import ImageMap
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.record import PieceRecord, ShardRecord
from holdfast.runtime.saving.plan import SavePlan, SaveTicket

Contents: TypeAlias = "tuple[int, tuple[tuple[PieceRecord, ...], ...]]"
"""A step and the digests of its tensors: all that a checkpoint is restored from."""


@dataclass(slots=True)
class Parts:
    """The parts of a save that have been copied, and the digests of their workers' states."""

    ticket: SaveTicket
    digests: dict[int, str] = field(default_factory=dict)
    cursor: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Whether all workers have copied their parts."""
        return len(self.digests) == self.ticket.parts

    def take(self, part: int, digest: str, cursor: Mapping[str, object] | None) -> None:
        """Take note of a part that was copied; one of them brings the cursor."""
        self.digests[part] = digest
        if cursor is not None:
            self.cursor = cursor

    def refuse_different_states(self) -> None:
        """Raise ``CommitRefused`` unless all parts are of the same state."""
        if len(set(self.digests.values())) > 1:
            raise CommitRefused(
                f"the workers' states differ after step {self.ticket.step}, so it is not saved; "
                "look at the machine's memory"
            )


@dataclass(slots=True)
class HeldSave:
    """A complete save: its plan, its memory and its records."""

    plan: SavePlan
    image_map: ImageMap
    ticket: SaveTicket
    cursor: Mapping[str, object]
    memory: memoryview
    records: tuple[ShardRecord, ...]
    is_durable: bool = False

    @staticmethod
    def of(plan: SavePlan, image_map: ImageMap, parts: Parts, memory: memoryview) -> HeldSave:
        """Return the save that ``parts`` make; ``image_map`` is the plan's.

        Raises ``CommitRefused`` if the parts are of different states, and ``SnapshotDamaged`` if
        the memory holds another save by now.
        """
        parts.refuse_different_states()
        header = parts.ticket.header(plan.run_id)
        shards = range(plan.layout.writers)
        records = tuple(image_map.record(memory, shard, header) for shard in shards)
        return HeldSave(plan, image_map, parts.ticket, parts.cursor, memory, records)

    @property
    def step(self) -> int:
        """The step whose state is saved."""
        return self.ticket.step

    @property
    def contents(self) -> Contents:
        """What is saved: equal for two worlds that save the same state."""
        return self.step, tuple(record.pieces for record in self.records)

    @property
    def is_whole(self) -> bool:
        """Whether the memory still holds what its records say; reads all of it."""
        try:
            self.manifest()
            for record in self.records:
                record.check(self.image(record))
        except CheckpointError:
            return False
        return True

    def image(self, record: ShardRecord) -> memoryview:
        """Return the file of a shard in memory."""
        return self.image_map.image(self.memory, record.index, record.size)

    def manifest(self) -> Manifest:
        """Return the manifest; raises ``CommitRefused`` if the records make nothing whole."""
        return self.plan.manifest(self.ticket.header(self.plan.run_id), self.records, self.cursor)
