"""What one store has of a step: the sound parts in all directories that hold something of it.

A step may lie in several directories: under its own name, and under a ``.bad-`` name for
each time that it was moved aside.  Each of them may have parts that the others lack, for
example after a mend that was cut short.  A part is known by its digest, so it does not
matter which save of the step it comes from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.names import StagingName, step_name
from holdfast.checkpoint.store.store import CheckpointStore
from holdfast.checkpoint.upkeep.inventory import CountBytes, Inventory, take_inventory
from holdfast.checkpoint.upkeep.part import Part


@dataclass(frozen=True, slots=True)
class Holding:
    """The sound parts of a step in a store, and the directory of each.

    The faults are those of the first directory alone, which is the step itself.
    """

    inventory: Inventory
    places: Mapping[Part, Path]


def directories_of(store: CheckpointStore, step: int) -> tuple[Path, ...]:
    """Return the directory of a step, if it is there, and its ``.bad-`` ones, newest first."""
    parsed = ((StagingName.parse_bad(name), name) for name in store.names())
    # As numbers: as text, generation 9 comes after 13.
    aside = [
        (bad.generation, bad.attempt, name) for bad, name in parsed if bad and bad.step == step
    ]
    found = [store.directory / name for *_, name in sorted(aside, reverse=True)]
    own = store.directory / step_name(step)
    return (own, *found) if not found or store.disk.is_directory(own) else tuple(found)


def take_holding(store: CheckpointStore, manifest: Manifest, progress: CountBytes) -> Holding:
    """Compare the parts in each directory of a step with the digests of ``manifest``.

    Directories that were moved aside are read only if the first one is not whole.
    """
    first, *aside = directories_of(store, manifest.step)
    found = take_inventory(store.disk, first, manifest, progress)
    places = dict.fromkeys(found.sound, first)
    for directory in () if found.is_whole else aside:
        more = take_inventory(store.disk, directory, manifest, progress)
        places = dict.fromkeys(more.sound, directory) | places
    return Holding(Inventory(frozenset(places), found.faults), places)
