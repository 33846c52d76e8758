"""The next transaction, and the steps at which a checkpoint is due, from the cursor alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

from holdfast.recovery.ledger import Cursor

NO_END = 1 << 40
"""Steps of an epoch that ends when its data end, or a callback host ends it: more than are done."""


class Work(Enum):
    """The kind of a transaction."""

    __hash__ = object.__hash__  # that of Enum is a Python function, and looked up every step

    TRAIN = "train"
    EVALUATE = "evaluate"


@dataclass(frozen=True)  # without slots: what each step asks for is worked out once
class WorkPlan:
    """The whole job as a sequence of transactions.

    Args:
        steps_per_epoch: updates of the model in one epoch.
        epochs: epochs to train.
        has_validation: whether each epoch ends with a pass over validation data.
        save_every: steps between checkpoints, None if a clock decides instead; the end of
            the job always has a checkpoint.
        verify_every: steps between comparisons of the replicas' states, 0 for none; each
            save begins with a comparison as well.
        saves_epochs: whether a checkpoint is due at each epoch's end too.
        keep_every: steps between checkpoints that are kept for ever, None for none.
        begin: the step at which the job's first update begins.
        first_epoch: epochs that count as done before that step.
        validated: every so many epochs end with a pass over validation data, or these do.
        pass_steps: updates in one pass over the data, None if an epoch is a pass.  A pass that
            is longer is cut into epochs: the last one of a pass has the steps that are left.
    """

    steps_per_epoch: int
    epochs: int
    has_validation: bool
    save_every: int | None
    verify_every: int = 0
    saves_epochs: bool = False
    keep_every: int | None = None
    begin: int = 0
    first_epoch: int = 0
    validated: int | tuple[int, ...] = 1
    pass_steps: int | None = None

    @cached_property
    def steps(self) -> int:
        """The step at which the job is complete."""
        return self.begin + self._updates_of(self.epochs)

    @property
    def is_open(self) -> bool:
        """Whether nobody knows when an epoch ends."""
        return self.steps_per_epoch >= NO_END

    @property
    def last_epoch(self) -> int:
        """The number of the job's last epoch."""
        return self.first_epoch + self.epochs

    def next_work(self, cursor: Cursor) -> Work | None:
        """Return the transaction that follows ``cursor``, or None when the job is complete."""
        if self.has_validation and cursor.evaluations < self._due(self._ended(cursor)):
            return Work.EVALUATE
        return Work.TRAIN if cursor.step < self.steps else None

    def without_missed_passes(self, cursor: Cursor) -> Cursor:
        """Return the cursor of a run that goes on, without validation of earlier epochs.

        Validation may be switched on at a resume. Then epochs before it had none, and get none.
        """
        missed = self._due(self._ended(cursor) - self.has_ended_epoch(cursor))
        if not self.has_validation or cursor.evaluations >= missed:
            return cursor
        return replace(cursor, evaluations=missed)

    def is_epoch_start(self, cursor: Cursor) -> bool:
        """Return whether the next transaction of training is the first of an epoch."""
        return not cursor.turn and self._place(self._updates(cursor)) == 0

    def has_ended_epoch(self, cursor: Cursor) -> bool:
        """Return whether the last update was the last of an epoch."""
        return cursor.is_cut or (self._updates(cursor) > 0 and self.is_epoch_start(cursor))

    def validates_cut(self, cursor: Cursor) -> bool:
        """Return whether the epoch would end with validation, if it were cut at ``cursor``."""
        return self.has_validation and self.next_work(cursor.after_cut()) is Work.EVALUATE

    def epoch_of(self, cursor: Cursor) -> int:
        """Return the number, from 1, of the epoch that the last update belongs to."""
        return self.first_epoch + self._epochs_in(max(self._updates(cursor), 1) - 1) + 1

    def is_save_point(self, cursor: Cursor) -> bool:
        """Return whether a checkpoint may be made at ``cursor``.

        None is made between an epoch's last update and its validation, nor between the turns
        of an update.  It would hold another state of the same step than a later checkpoint.
        """
        if cursor.turn or not self._updates(cursor):
            return False
        return self.next_work(cursor) is not Work.EVALUATE

    def is_save_due(self, cursor: Cursor) -> bool:
        """Return whether a checkpoint is due at ``cursor``, right after a transaction."""
        if not self.is_save_point(cursor):
            return False
        if self.saves_epochs and self.has_ended_epoch(cursor):
            return True
        return any(
            every is not None and cursor.step % every == 0
            for every in (self.save_every, self.keep_every)
        )

    def next_save_step(self, cursor: Cursor) -> int:
        """Return the next step with a checkpoint, as far as steps decide; the last one has one."""
        every = [number for number in (self.save_every, self.keep_every) if number is not None]
        due = [(cursor.step // number + 1) * number for number in every]
        if self.saves_epochs:
            due.append(self.begin + self._updates_of(self._ended(cursor) + 1))
        return min([*due, self.steps])

    def step_of_epoch(self, cursor: Cursor) -> int:
        """Return the number, from 1, that the last update has in its epoch; 0 before the first."""
        updates = self._updates(cursor)
        return updates and self._place(updates - 1) + 1

    def updates_of_epoch(self, cursor: Cursor) -> range:
        """Return the updates, from 0, of the epoch that the last update belongs to."""
        epoch = self.epoch_of(cursor) - self.first_epoch
        end = self._updates(cursor) if cursor.is_cut else self._updates_of(epoch)
        return range(self._updates_of(epoch - 1), end)

    @property
    def cuts_passes(self) -> bool:
        """Whether an epoch may be less than a pass over the data."""
        return self._pass > self.steps_per_epoch

    def is_check_due(self, cursor: Cursor) -> bool:
        """Return whether the replicas' states are to be compared at ``cursor``."""
        if cursor.turn:
            return False
        return self.verify_every > 0 and cursor.step % self.verify_every == 0

    def _updates(self, cursor: Cursor) -> int:
        """Return the number of this job's updates so far."""
        return cursor.step - self.begin

    def _ended(self, cursor: Cursor) -> int:
        """Return the number of this job's epochs that have ended so far."""
        return self._epochs_in(self._updates(cursor)) + cursor.is_cut

    @cached_property
    def _pass(self) -> int:
        return max(self.pass_steps or 0, self.steps_per_epoch)

    @cached_property
    def _epochs_of_a_pass(self) -> int:
        return -(-self._pass // self.steps_per_epoch)

    def _updates_of(self, epochs: int) -> int:
        """Return the updates of so many epochs from the beginning."""
        passes, more = divmod(epochs, self._epochs_of_a_pass)
        return passes * self._pass + more * self.steps_per_epoch

    def _epochs_in(self, updates: int) -> int:
        """Return the whole epochs in so many updates from the beginning."""
        passes, more = divmod(updates, self._pass)
        return passes * self._epochs_of_a_pass + more // self.steps_per_epoch

    def _place(self, update: int) -> int:
        """Return the place, from 0, of an update in its epoch."""
        return update % self._pass % self.steps_per_epoch

    def _due(self, passes: int) -> int:
        """Return the passes over validation data that belong to so many epochs of the job."""
        first, last = self.first_epoch, self.first_epoch + passes
        if isinstance(self.validated, int):
            return last // self.validated - first // self.validated
        return sum(first < epoch <= last for epoch in self.validated)
