"""An order to make a step whole, as a restore gives it to the host's writer.

Only one process of a host changes checkpoints.  A restore comes before the first plan of
saves, and may have to use a step of an earlier launch.  So an order says all that a mend
needs: whose directory it is, and where parts of the step may be.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.checkpoint.format.key_file import KeyFile
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.runtime.run.ownership import Ownership
from holdfast.runtime.run.stored_run import owned_store


@dataclass(frozen=True, slots=True)
class MendOrder:
    """A step of a run, and the copies of its directory that may have parts of it."""

    step: int
    run_dir: Path
    run_id: str
    lease_token: str = ""
    key_file: KeyFile | None = None
    copies: tuple[Path, ...] = ()

    def open_store(self) -> CheckpointStore:
        """Return the checkpoints of the run.

        Raises ``KeyUnusable`` if the key is no longer at the path where the job found it.
        """
        key = None if self.key_file is None else self.key_file.read()
        return owned_store(Ownership(self.run_dir, self.run_id, self.lease_token), key)

    def as_json(self) -> dict[str, Any]:
        """Return the order as a message."""
        return {
            "kind": "mend",
            "step": self.step,
            "run_dir": str(self.run_dir),
            "run_id": self.run_id,
            "lease_token": self.lease_token,
            "key_file": self.key_file and dataclasses.asdict(self.key_file),
            "copies": [str(path) for path in self.copies],
        }

    @staticmethod
    def of(message: Mapping[str, Any]) -> MendOrder:
        """Return the order in a message; raises ``KeyError`` if a field is missing."""
        return MendOrder(
            message["step"],
            Path(message["run_dir"]),
            message["run_id"],
            message["lease_token"],
            message["key_file"] and KeyFile(**message["key_file"]),
            tuple(map(Path, message["copies"])),
        )
