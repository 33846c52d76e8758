"""One set of effects for all workers, after their companions have run a round.

Nothing is changed before everything has arrived.  So after a death on the way the round is
agreed on again, by the survivors.
"""

from __future__ import annotations

import struct

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.recovery.vote import Decision, Effects, decide
from holdfast.runtime.exchange.communicator import WorldBroken
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.system.heartbeat import HeartbeatPage
from holdfast.runtime.training.catch_up import share_notes, share_state
from holdfast.runtime.training.companion import Notes
from holdfast.runtime.training.job_state import JobState

_CARD = struct.Struct("<?BBB")
"""Whether a stop is wanted, and the lengths of the two digests and of the kind of an error."""

_FIRST = 0


def agree_on_effects(
    membership: Membership, state: JobState, cursor: Cursor, turns: HeartbeatPage
) -> None:
    """Let all companions have the same effects of the round that has run; run the next one.

    A round is code of the script, and may take as long as it likes: no peer has to help.

    Raises:
        WorldBroken: a member died, or cannot go on; nothing is changed on any worker.
        Exception: that of the round, if other workers have none of its kind.
    """
    companion = state.companion
    with turns.needing_no_peer():
        companion.lead(is_first=membership.is_first)
        card = _encode(companion.effects()) + companion.message()
    cards = membership.together(lambda: membership.communicator.allgather_bytes(card))
    found = [_decode(card) for card in cards]
    decision = decide([effects for effects, _ in found])
    if decision.is_divided:
        raise companion.error or WorldBroken("the script has raised an error on a peer alone")
    notes: Notes | None = None
    if decision.shares_notes or decision.shares_state:
        tensors, notes = membership.together(lambda: _share(membership, state, cursor, decision))
        if tensors is not None:
            state.load(tensors)
    with turns.needing_no_peer():
        companion.decided(decision, found[_FIRST][1], notes)


def _share(
    membership: Membership, state: JobState, cursor: Cursor, decision: Decision
) -> tuple[Tensors | None, Notes | None]:
    communicator = membership.communicator
    notes = share_notes(communicator, _FIRST, state.companion.notes())
    if not decision.shares_state:
        return None, notes
    return share_state(communicator, _FIRST, state.tensors(cursor)), notes


def _encode(effects: Effects) -> bytes:
    parts = (effects.notes, effects.state, effects.error)
    return _CARD.pack(effects.wants_stop, *map(len, parts)) + b"".join(parts)


def _decode(card: bytes) -> tuple[Effects, bytes]:
    """Return the effects of a card, and the message after them."""
    wants_stop, *lengths = _CARD.unpack_from(card)
    rest, parts = card[_CARD.size :], []
    for length in lengths:
        parts.append(rest[:length])
        rest = rest[length:]
    return Effects(wants_stop, *parts), rest
