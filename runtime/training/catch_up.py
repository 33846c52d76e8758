"""All workers get the newest state: one routine for starts, resumes and laggards.

The source is the lowest rank among those that have committed most.  If no worker has a
state yet, rank 0 is the source.  It loads the newest valid checkpoint, or keeps the state
that its model was built with.  So disk, network and a fresh start are one path.  A death
anywhere in it is repaired like any other.  A lone worker that begins holds the newest state
already.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.loss.settling import first_cursor
from holdfast.runtime.saving.saver import Saver
from holdfast.runtime.training.companion import Notes
from holdfast.runtime.training.due import Due
from holdfast.runtime.training.job_state import JobState, notes_of
from holdfast.runtime.training.restoring import JobRestore
from holdfast.runtime.training.same_step import check_same_weights
from holdfast.runtime.training.training_job import TrainingJob
from holdfast.runtime.worker.context import WorkerContext

NO_STATE = -1
"""Version of a worker that holds no state yet."""

FAILED = -2
"""Version of a worker whose script has failed to begin its training."""


@dataclass(frozen=True, slots=True)
class Source:
    """The rank with the newest state, and whether any worker lacks that state."""

    rank: int
    version: int
    is_needed: bool


@dataclass(frozen=True, slots=True)
class Shared:
    """The newest state and its notes."""

    tensors: Tensors
    notes: Notes | None
    is_own: bool = False
    """Whether the replica holds all of it already."""
    is_restored: bool = False
    """Whether it was read from a checkpoint."""
    due: Due | None = None
    """The commit whose callbacks have still to run."""


def find_source(versions: Sequence[int]) -> Source:
    """Return the lowest rank with the largest of ``versions``, which are in rank order."""
    newest = max(versions)
    rank = versions.index(newest)
    return Source(rank, newest, is_needed=newest == NO_STATE or min(versions) < newest)


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


class NewestState:
    """Gives the newest state to all members of a world."""

    def __init__(
        self,
        membership: Membership,
        context: WorkerContext,
        job: TrainingJob,
        state: JobState,
        saver: Saver,
    ) -> None:
        self._membership = membership
        self._context = context
        self._job = job
        self._state = state
        self._saver = saver

    def share(self, source: Source, cursor: Cursor) -> Shared:
        """Return the newest state; if no member has one, read it from the disk or build it.

        Raises:
            ProgramError: nothing was saved, and the workers have built other weights.
            WorldBroken: a member died; nothing is changed.
        """
        communicator = self._membership.communicator
        if source.version == NO_STATE:
            replica = self._state.replica
            cursor = first_cursor(replica, replica.shape.metrics, self._job.stage.begin)
            restore = JobRestore(self._context, self._job, self._state)
            restored = restore.run(communicator, cursor)
            if restored is not None:
                self._saver.saved_step = restore.saved_step
                self._saver.local_step = restore.local_step
                cursor_saved = restored.manifest.cursor
                self._state.restored(restored.manifest.step, cursor_saved)
                due = Due.of(cursor_saved)
                return Shared(restored.state, notes_of(cursor_saved), is_restored=True, due=due)
            if self._job.initial is None:  # which rank 0 alone has read
                check_same_weights(self._membership, self._state, cursor)
        self._saver.share_saved_step(source.rank)
        notes = None if source.version == NO_STATE else self._state.companion.notes()
        notes = share_notes(communicator, source.rank, notes)
        state = self._state.tensors(cursor)
        if communicator.size == 1:  # a copy of all weights, to load it again, takes its time
            return Shared(state, notes, is_own=True)
        return Shared(share_state(communicator, source.rank, state), notes)
