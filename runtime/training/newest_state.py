"""The newest state of a world, wherever it is: in memory, on the disk, or in a new model."""

from __future__ import annotations

from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.saving.saver import Saver
from holdfast.runtime.training.catch_up import NO_STATE, Source, share_notes, share_state
from holdfast.runtime.training.companion import Notes
from holdfast.runtime.training.job_state import JobState, notes_of
from holdfast.runtime.training.restoring import JobRestore
from holdfast.runtime.training.training_job import TrainingJob
from holdfast.runtime.worker.context import WorkerContext


class NewestState:
    """Gives the newest state to all members of a world."""

    def __init__(
        self, context: WorkerContext, job: TrainingJob, state: JobState, saver: Saver
    ) -> None:
        self._context = context
        self._job = job
        self._state = state
        self._saver = saver

    def share(
        self, communicator: Communicator, source: Source, cursor: Cursor
    ) -> tuple[Tensors, Notes | None]:
        """Return the newest state; if no member has one, read it from the disk or build it.

        Raises:
            WorldBroken: a member died; nothing is changed.
        """
        if source.version == NO_STATE:
            cursor = Cursor.start(self._state.replica.shape.metrics, self._job.stage.begin)
            restore = JobRestore(self._context, self._job, self._state)
            restored = restore.run(communicator, cursor)
            if restored is not None:
                self._saver.saved_step = restore.saved_step
                return restored.state, notes_of(restored.manifest.cursor)
        self._saver.share_saved_step(source.rank)
        notes = None if source.version == NO_STATE else self._state.companion.notes()
        notes = share_notes(communicator, source.rank, notes)
        return share_state(communicator, source.rank, self._state.tensors(cursor)), notes
