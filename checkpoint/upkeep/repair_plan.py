"""What to take from where to make a damaged step whole; decided from what two holders have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.checkpoint.errors import RepairImpossible
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.upkeep.inventory import Inventory
from holdfast.checkpoint.upkeep.part import Part, parts_of

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """Which parts of a step stay, and which are taken from the other holder."""

    kept: frozenset[Part]
    taken: frozenset[Part]


def plan_repair(manifest: Manifest, here: Inventory, there: Inventory) -> RepairPlan:
    """Decide for each part of a step whom to take it from; what is sound here stays.

    Raises ``RepairImpossible`` and names the parts that nobody has.
    """
    parts = [part for shard in parts_of(manifest) for part in shard]
    missing = [str(part) for part in parts if part not in here.sound | there.sound]
    if missing:
        raise RepairImpossible(
            manifest.step,
            f"neither holder has {_some(missing)} "
            f"(here: {_some(here.faults)}; there: {_some(there.faults)})",
        )
    kept = here.sound.intersection(parts)
    return RepairPlan(kept, frozenset(parts) - kept)


def _some(sentences: Sequence[str]) -> str:
    shown = "; ".join(sentences[:_MOST_NAMED]) or "no fault"
    more = len(sentences) - _MOST_NAMED
    return f"{shown}; and {more} more" if more > 0 else shown
