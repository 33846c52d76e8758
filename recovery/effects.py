"""The effects of callbacks, and the one decision that all workers make of them.

Every worker runs every callback with the same values, so as a rule all come to the same
effects.  A callback that looks at a clock or throws dice may not.  Then one decision holds
for all: a stop that any worker wants is everyone's, and what differs is taken from the
first worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one worker's callbacks since the last decision."""

    wants_stop: bool
    notes: bytes
    """Digest of what the callbacks remember."""
    state: bytes
    """Digest of the tensors of the replica that they have changed."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What all workers do next, the same for every worker of the world."""

    is_stop_wanted: bool
    shares_notes: bool
    """Whether all take what the callbacks of the first worker remember."""
    shares_state: bool
    """Whether all take the whole state of the first worker."""


def decide(effects: Sequence[Effects]) -> Decision:
    """Return the decision that follows from the ``effects`` of all workers, in rank order."""
    first = effects[0]
    return Decision(
        is_stop_wanted=any(found.wants_stop for found in effects),
        shares_notes=any(found.notes != first.notes for found in effects),
        shares_state=any(found.state != first.state for found in effects),
    )
