"""All that the saves of a stage have in common, as the process that commits needs it.

It travels once, not once a worker and save.  A plan with the images of a save is enough to
commit, so a save that is complete in memory needs no worker any more.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.disk.filesystem import FileSystem
from holdfast.checkpoint.format.digest import digest_of
from holdfast.checkpoint.format.image_map import ImageMap
from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.checkpoint.format.layout import ShardLayout, TensorSpec
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.record import Header, ShardRecord
from holdfast.checkpoint.format.version import Version
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.retention import Best, Retention, Wanted
from holdfast.checkpoint.upkeep.space import Space
from holdfast.runtime.committing.local_level import LocalTerms
from holdfast.runtime.run.ownership import Ownership
from holdfast.runtime.run.stored_run import owned_store


@dataclass(frozen=True, slots=True)
class CareTerms:
    """How the committed steps of a run are cared for.

    ``generation`` is that of the launch: staging of older ones is dead.  ``unsound`` are
    steps that this launch, or one before it, has rejected.
    """

    retention: Retention
    generation: int
    scrub_every_s: float = 0.0
    repair_from: Path | None = None
    unsound: frozenset[int] = frozenset()
    keep_space: str | None = None
    """The space that the checkpoints may take, as the user has written it."""

    @property
    def whole_retention(self) -> Retention:
        """The retention with the space that the checkpoints may take."""
        space = None if self.keep_space is None else Space.parse(self.keep_space)
        return dataclasses.replace(self.retention, space=space)

    def as_json(self) -> dict[str, object]:
        """Return the terms as a JSON object."""
        retention = dataclasses.asdict(self.retention)
        retention["forever"] = sorted(self.retention.forever)
        del retention["space"]  # it is a fraction, and travels as a text
        return {
            "retention": retention,
            "generation": self.generation,
            "scrub_every_s": self.scrub_every_s,
            "repair_from": self.repair_from and str(self.repair_from),
            "unsound": sorted(self.unsound),
            "keep_space": self.keep_space,
        }

    @staticmethod
    def of(value: Mapping[str, Any]) -> CareTerms:
        """Return the terms that ``as_json`` made."""
        kept = value["retention"]
        wanted = tuple(
            Wanted(**{**found, "best": found["best"] and Best(**found["best"])})
            for found in kept["wanted"]
        )
        return CareTerms(
            Retention(**{**kept, "wanted": wanted, "forever": frozenset(kept["forever"])}),
            value["generation"],
            value["scrub_every_s"],
            value["repair_from"] and Path(value["repair_from"]),
            frozenset(value["unsound"]),
            value["keep_space"],
        )


@dataclass(frozen=True, slots=True)
class SavePlan:
    """The plan of a stage's saves; every worker of the stage has an equal one.

    ``fields`` are those of a manifest's cursor that are the same for the whole stage.
    """

    run_dir: Path
    run_id: str
    layout: ShardLayout
    care: CareTerms
    fields: Mapping[str, object]
    numerics: Mapping[str, object]
    key_file: KeyFile | None = None
    local: LocalTerms | None = None
    lease_token: str = ""

    @property
    def layout_id(self) -> str:
        """The name of the memory that fits these saves, the same in every process."""
        layout = self.layout
        specs = _specs_json(layout.specs)
        key = self.key_file and self.key_file.key_id
        return digest_of(json.dumps([self.run_id, layout.writers, key, specs]).encode())

    @property
    def ownership(self) -> Ownership:
        """The claim of the job to the run directory."""
        return Ownership(self.run_dir, self.run_id, self.lease_token)

    def open_store(self, files: FileSystem | None = None) -> CheckpointStore:
        """Return the run's checkpoints, fenced, or on another file system if one is given.

        Raises ``KeyUnusable`` if the key is no longer at the path where the job found it.
        """
        key = None if self.key_file is None else self.key_file.read()
        return owned_store(self.ownership, key, files)

    def image_map(self) -> ImageMap:
        """Return where each byte of a save lies in memory."""
        version = Version.PLAIN if self.key_file is None else Version.SIGNED
        return ImageMap.of(self.layout, version.digest)

    def manifest(
        self, header: Header, records: Sequence[ShardRecord], cursor: Mapping[str, object]
    ) -> Manifest:
        """Return the manifest of a save.

        Raises ``CommitRefused`` if the records do not make the checkpoint whole.
        """
        whole = {**self.fields, "step": header.step, **cursor}
        return Manifest.assemble(
            self.layout, list(records), header=header, cursor=whole, numerics=self.numerics
        )

    def encode(self) -> bytes:
        """Return the plan as bytes."""
        return json.dumps(
            {
                "run_dir": str(self.run_dir),
                "run_id": self.run_id,
                "lease_token": self.lease_token,
                "writers": self.layout.writers,
                "specs": _specs_json(self.layout.specs),
                "care": self.care.as_json(),
                "fields": dict(self.fields),
                "numerics": dict(self.numerics),
                "key_file": self.key_file and dataclasses.asdict(self.key_file),
                "local": self.local and self.local.as_json(),
            },
            separators=(",", ":"),
        ).encode()

    @staticmethod
    def decode(data: bytes) -> SavePlan:
        """Return the plan that ``encode`` made."""
        value = json.loads(data)
        specs = tuple(TensorSpec(n, dtype, tuple(shape)) for n, dtype, shape in value["specs"])
        return SavePlan(
            Path(value["run_dir"]),
            value["run_id"],
            ShardLayout(specs, value["writers"]),
            CareTerms.of(value["care"]),
            value["fields"],
            value["numerics"],
            value["key_file"] and KeyFile(**value["key_file"]),
            value["local"] and LocalTerms.of(value["local"]),
            value["lease_token"],
        )


def _specs_json(specs: Sequence[TensorSpec]) -> list[list[object]]:
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in specs]
