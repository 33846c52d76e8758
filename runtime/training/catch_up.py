"""All workers get the newest state, and the same effects of their callback hosts.

One routine gives the state to starts, resumes and laggards.  The source is the lowest rank among
those that have committed most.  If no worker has a state yet, rank 0 is the source.  It loads the
newest valid checkpoint, or keeps the state that its model was built with.  So disk, network and a
fresh start are one path.  A death anywhere in it is repaired like any other.  A worker that begins
alone, or with the same weights as all others, holds the newest state already.

After a round of callback hosts all take over one set of effects.  Nothing is changed before
everything has arrived.  So after a death on the way the survivors agree on the round again.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import Decision, Effects, decide
from holdfast.runtime.exchange.membership import Communicator, Membership, WorldBroken
from holdfast.runtime.model.replica import first_cursor
from holdfast.runtime.saving.saver import Saver
from holdfast.runtime.system.timeline import Activity
from holdfast.runtime.system.worker_status import WorkerStatus
from holdfast.runtime.training.callback_host import Due, Notes
from holdfast.runtime.training.consistency import Mine, compare
from holdfast.runtime.training.job_state import TrainingState, notes_of
from holdfast.runtime.training.restoring import JobRestore
from holdfast.runtime.training.training_job import TrainingJob
from holdfast.runtime.worker.context import WorkerContext

NO_STATE = -1
"""Version of a worker that holds no state yet."""

FAILED = -2
"""Version of a worker whose script has failed to begin its training."""

_CARD = struct.Struct("<?BBB")
"""Whether a stop is wanted, and the lengths of the two digests and of the kind of an error."""

_FIRST = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """The newest state and its notes."""

    tensors: Tensors
    notes: Notes | None
    is_own: bool = False
    """Whether the replica holds it already: the tensors are those of the cursor alone."""
    is_restored: bool = False
    """Whether it was read from a checkpoint."""
    due: Due | None = None
    """The commit whose callbacks have still to run."""


class NewestState:
    """Gives the newest state to all members of a world."""

    def __init__(
        self,
        membership: Membership,
        context: WorkerContext,
        job: TrainingJob,
        state: TrainingState,
        saver: Saver,
    ) -> None:
        self._membership = membership
        self._context = context
        self._job = job
        self._state = state
        self._saver = saver

    def share(self, versions: Sequence[int], cursor: Cursor) -> Shared:
        """Return the newest state; if no member has one, read it from the disk or build it.

        The lowest rank with the largest of ``versions``, which are in rank order, has it.

        Raises:
            ProgramError: nothing was saved, and the workers have built other weights.
            WorldBroken: a member died; nothing is changed.
        """
        communicator = self._membership.communicator
        is_own, newest = communicator.size == 1, max(versions)
        source = versions.index(newest)
        if newest == NO_STATE:
            replica = self._state.replica
            cursor = first_cursor(replica, self._job.stage.begin)
            restore = JobRestore(self._context, self._job, self._state)
            restored = restore.run(communicator, cursor)
            if restored is not None:
                self._saver.saved_step = restored.manifest.step
                cursor_saved = restored.manifest.cursor
                self._state.restored(restored.manifest.step, cursor_saved)
                due = Due.of(cursor_saved)
                return Shared(restored.state, notes_of(cursor_saved), is_restored=True, due=due)
            if self._job.initial is None:  # which rank 0 alone has read
                mine = Mine(self._context, self._job, self._state, cursor)
                compare(self._membership, mine, weights=True)
                is_own = True
        self._saver.share_saved_step(source)
        notes = None
        if newest != NO_STATE:  # else nobody has any
            notes = share_notes(communicator, source, self._state.notes())
        # A copy of weights that all have already, to load it again, takes its time.
        state = cursor.tensors() if is_own else self._state.tensors(cursor)
        return Shared(share_state(communicator, source, state), notes, is_own=is_own)


def share_state(communicator: Communicator, source: int, state: Tensors) -> Tensors:
    """Return the state of rank ``source``, once all of it has arrived; changes nothing.

    Raises:
        WorldBroken: a member died; ``state`` is unchanged.
    """
    received: dict[str, npt.NDArray[np.generic]] = {}
    for name, value in state.items():
        buffer = np.array(value, order="C", copy=True)
        communicator.broadcast(buffer, source)
        received[name] = buffer
    return received


def share_notes(communicator: Communicator, source: int, notes: Notes | None) -> Notes | None:
    """Return the notes of rank ``source``, None if it has none.

    Raises:
        WorldBroken: a member died.
    """
    text = json.dumps(notes).encode()
    size = np.array([len(text)], np.int64)
    communicator.broadcast(size, source)
    buffer = np.empty(int(size[0]), np.uint8)
    if communicator.rank == source:
        buffer[:] = np.frombuffer(text, np.uint8)
    communicator.broadcast(buffer, source)
    shared: Notes | None = json.loads(buffer.tobytes())
    return shared


def agree_on_effects(
    membership: Membership, state: TrainingState, cursor: Cursor, turns: WorkerStatus
) -> None:
    """Let all callback hosts have the same effects of the round that has run; run the next one.

    A round is code of the script, and may take as long as it likes: no peer has to help.

    Raises:
        WorldBroken: a member died, or cannot go on; nothing is changed on any worker.
        Exception: that of the round, if other workers have none of its kind.
    """
    callback_host = state.callback_host
    with turns.needing_no_peer():
        callback_host.lead(is_first=membership.is_first)
        card = _encode(callback_host.effects()) + callback_host.message()
    turns.enter(Activity.WAIT)  # a slow callback of a peer is the peer's
    cards = membership.together(lambda: membership.communicator.allgather_bytes(card))
    turns.enter(Activity.CALLBACKS)
    found = [_decode(card) for card in cards]
    decision = decide([effects for effects, _ in found])
    if decision.is_divided:
        raise callback_host.error or WorldBroken("the script has raised an error on a peer alone")
    notes: Notes | None = None
    if decision.shares_notes or decision.shares_state:
        tensors, notes = membership.together(lambda: _share(membership, state, cursor, decision))
        if tensors is not None:
            state.load(tensors)
    with turns.needing_no_peer():
        callback_host.decided(decision, found[_FIRST][1], notes)


def _share(
    membership: Membership, state: TrainingState, cursor: Cursor, decision: Decision
) -> tuple[Tensors | None, Notes | None]:
    communicator = membership.communicator
    notes = share_notes(communicator, _FIRST, state.callback_host.notes())
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
