"""How a checkpoint in flight goes on, as everyone in the world sees it.

A save has two stretches that run in the background of training, and between
them one exchange: all write their shards; when every shard is durable the
shards' records are gathered; then rank 0 writes the manifest and commits.  The
bits of each vote tell when a stretch has ended for all, so all survivors are
always in the same phase and no message of its own is needed.  A death abandons
the save: the survivors begin another one.
"""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType

from holdfast.recovery.vote import Bit


class SavePhase(Enum):
    """Where the checkpoint in flight stands."""

    IDLE = "idle"
    WRITING = "writing"
    GATHERING = "gathering"
    COMMITTING = "committing"
    COMMITTED = "committed"
    FAILED = "failed"


_DECISIVE = MappingProxyType(
    {
        SavePhase.WRITING: (Bit.DURABLE, SavePhase.GATHERING),
        SavePhase.COMMITTING: (Bit.SETTLED, SavePhase.COMMITTED),
    }
)


def after_vote(phase: SavePhase, agreed: Bit) -> SavePhase:
    """Return the phase after a vote whose outcome has the bits ``agreed``."""
    if phase not in _DECISIVE:
        return phase
    if Bit.INTACT not in agreed:
        return SavePhase.FAILED
    bit, following = _DECISIVE[phase]
    return following if bit in agreed else phase
