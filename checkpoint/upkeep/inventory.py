"""The sound parts of a step in a directory; unlike a scan, it goes on after a fault."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from holdfast.checkpoint.disk.disk import Disk, ReadFile
from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.names import shard_name
from holdfast.checkpoint.upkeep.part import Part, parts_of, read_part

CountBytes: TypeAlias = Callable[[int], None]
"""Is told how many more bytes have been read."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The parts that verify, and one sentence on each fault."""

    sound: frozenset[Part]
    faults: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        """Whether the step is as it was saved."""
        return not self.faults


def silent(_count: int) -> None:
    """Ignore progress."""


def take_inventory(
    disk: Disk, directory: Path, manifest: Manifest, progress: CountBytes = silent
) -> Inventory:
    """Compare every part of a step in ``directory`` with the digests of ``manifest``."""
    sound: list[Part] = []
    faults: list[str] = []
    for shard, parts in zip(manifest.shards, parts_of(manifest), strict=True):
        path = directory / shard_name(shard.index, manifest.writers)
        try:
            with disk.reading(path) as file:
                size = file.size()
                if size != shard.size:
                    faults.append(f"shard {shard.index} has {size} of {shard.size} bytes")
                for part in parts:
                    fault = _fault_of(file, part) if part.stop <= size else f"cut off: {part}"
                    progress(part.nbytes)
                    if fault is None:
                        sound.append(part)
                    else:
                        faults.append(fault)
        except StorageFailed as error:
            faults.append(str(error))
    return Inventory(frozenset(sound), tuple(faults))


def _fault_of(file: ReadFile, part: Part) -> str | None:
    """Return a part's fault, None if it verifies; a bad block of the disk spoils only its part."""
    try:
        return None if read_part(file, part) else f"wrong digest of {part}"
    except StorageFailed as error:
        return f"{part}: {error}"
