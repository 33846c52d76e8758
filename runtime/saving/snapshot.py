"""The message that goes with a snapshot from its worker to the process that writes it.

A plan holds everything that a commit needs and no shard contains.  So a checkpoint whose
snapshots are complete can be committed after the death of all its workers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.checkpoint.format.layout import ShardLayout, TensorSpec
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import Header, ShardRecord


@dataclass(frozen=True, slots=True)
class SavePlan:
    """One save; every worker of its world has an equal plan."""

    header: Header
    attempt: int
    layout: ShardLayout
    cursor: Mapping[str, object]
    numerics: Mapping[str, object]

    @property
    def key(self) -> tuple[int, int, int]:
        """The name of the save: step, generation and attempt."""
        return (self.header.step, self.header.generation, self.attempt)

    def manifest(self, records: list[ShardRecord]) -> Manifest:
        """Return the manifest of the checkpoint.

        Raises ``CommitRefused`` if the records do not make the checkpoint whole.
        """
        return Manifest.assemble(
            self.layout, records, header=self.header, cursor=self.cursor, numerics=self.numerics
        )


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A complete shard in memory; the memory itself travels beside it."""

    run_dir: Path
    plan: SavePlan
    record: ShardRecord
    state_digest: str
    """Digest of the whole state that its worker held; all workers must have the same one."""
    key_file: KeyFile | None = None
    """The file of the key that signs the checkpoint, None without a key."""

    def as_json(self) -> dict[str, Any]:
        """Return the snapshot as a JSON object."""
        plan = self.plan
        return {
            "run_dir": str(self.run_dir),
            "run_id": plan.header.run_id,
            "generation": plan.header.generation,
            "step": plan.header.step,
            "attempt": plan.attempt,
            "specs": [[spec.name, spec.dtype, spec.shape] for spec in plan.layout.specs],
            "writers": plan.layout.writers,
            "cursor": dict(plan.cursor),
            "numerics": dict(plan.numerics),
            "record": self.record.as_json(),
            "state_digest": self.state_digest,
            "key_file": self.key_file and dataclasses.asdict(self.key_file),
        }

    @staticmethod
    def of(message: Mapping[str, Any]) -> Snapshot:
        """Return the snapshot from the fields that ``as_json`` has made."""
        specs = tuple(TensorSpec(n, dtype, tuple(shape)) for n, dtype, shape in message["specs"])
        plan = SavePlan(
            Header(message["run_id"], message["generation"], message["step"]),
            message["attempt"],
            ShardLayout(specs, message["writers"]),
            message["cursor"],
            message["numerics"],
        )
        record = ShardRecord.from_json(message["record"])
        key_file = message["key_file"] and KeyFile(**message["key_file"])
        return Snapshot(Path(message["run_dir"]), plan, record, message["state_digest"], key_file)
