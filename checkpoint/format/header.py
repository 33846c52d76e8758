"""Which save a shard belongs to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Header:
    """What all shards of one save have in common; it is written into each of them."""

    run_id: str
    generation: int
    step: int
