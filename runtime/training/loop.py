"""A worker's training loop: it does the work of each state and reports its end.

Each state of `recovery.step` is one method.  A method may raise ``WorldBroken``, which is
the event ``BROKEN``.  The table of `recovery.step` decides the next state; nothing here
does.

A microbatch that a worker has not owned yet may have another shape, and the first one of
a shape costs a trace.  A worker that adopts one in a recovery should not pay then.  So
`preparing` makes the replica ready for all shapes of the job after the first commits, one
shape at a time.  All this frees more memory than a step needs, which is then returned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator
from functools import partial

from holdfast.recovery.fault import Site
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.order import BatchOrder, SampleOrder
from holdfast.recovery.step import (
    OVER,
    REFUSAL,
    TOGETHER,
    Bit,
    Outcome,
    StepEvent,
    StepState,
    ballot,
    next_state,
    outcome,
)
from holdfast.recovery.work_plan import Work
from holdfast.recovery.world import adopt
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.samples import read_microbatch
from holdfast.runtime.errors import JobError
from holdfast.runtime.exchange.membership import Membership, WorldBroken
from holdfast.runtime.exchange.memory import Sum
from holdfast.runtime.exchange.sums import Exchange
from holdfast.runtime.model.replica import Microbatch, Replica
from holdfast.runtime.saving.plan import SaveClock
from holdfast.runtime.saving.saver import Saver
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.codec import to_plain
from holdfast.runtime.system.own_process import trim_memory
from holdfast.runtime.system.worker_status import Phase, RequestFlag
from holdfast.runtime.training.balancing import Balancer
from holdfast.runtime.training.callback_host import CallbackHost, Commit, Due
from holdfast.runtime.training.consistency import STEP, Mine, StepRecord, compare
from holdfast.runtime.training.job_state import NO_STATE, Rest, TrainingState, agree_on_effects
from holdfast.runtime.training.progress import Progress, ProgressTeller, RepairCount
from holdfast.runtime.training.restoring import share_newest
from holdfast.runtime.training.training_job import TrainingJob
from holdfast.runtime.training.transaction import Transaction, part_of
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords

_POLL_S = 0.005
_NOTHING_AGREED = outcome(ballot(is_finite=True, save=Bit(0)))


class TrainingLoop:
    """Trains one replica to the end of the job, together with the world it is part of."""

    def __init__(
        self, context: WorkerContext, membership: Membership, state: TrainingState, job: TrainingJob
    ) -> None:
        replica = state.replica
        self._context = context
        self._state = state
        self._callback_host = state.callback_host
        self._has_callbacks = type(state.callback_host) is not CallbackHost
        self._job = job
        self._membership = membership
        shown = job.work_plan.last_epoch, job.verbose
        self.records = LoopRecords(context, self._membership, *shown)
        self.progress = Progress(replica, job, self.records)
        """The committed cursor, and the metrics of the last epoch."""
        self._teller = ProgressTeller(context.page, replica, job)
        context.beats[:] = [self._teller.tell]
        self._preparing = preparing(replica, job, context.page.enter)
        self._saver = Saver(context, self._membership, job.work_plan, job.save_terms, self.records)
        self._clock = SaveClock(job.schedule, context.config.history, self.records.note)
        self._moving = context.halt.moving
        mine = self.progress, self._saver, self.records
        self._rest = Rest(context, state, *mine, job.work_plan, self._fields)
        self._step = StepRecord.of(self._mine)
        self._transactions: dict[Work, Transaction] = job.transactions(replica, context.page)
        offers = {work: of_work.vectors for work, of_work in self._transactions.items()}
        self._exchange = Exchange(self._membership, offers, job.microbatches)
        self._transaction = self._transactions[Work.TRAIN]
        is_on = context.config.options.balance
        self._balancer = Balancer(membership, job.microbatches, context.report, is_on=is_on)
        self._assignment = self._balancer.assignment
        self._is_scattered = False
        self._is_loaded = False
        self._ending: JobError | None = None
        self._error: Exception | None = None
        self._is_stopping = False
        self._is_committing = False
        self._has_told_end = False
        self._repairs = RepairCount(context.config)
        self._detected = 0.0
        # Of the update in hand: the step table leads nowhere that needs them before they are set.
        self._sum: Sum
        self._outcome: Outcome

    def run(self) -> Cursor:
        """Train until the job is complete or stops early; return the final cursor.

        Raises:
            JobError: the job cannot go on; a checkpoint was made if that was possible.
        """
        state = StepState.JOINING
        self._context.halt.resting = self._rest
        try:
            while state not in OVER:
                state = next_state(state, self._act(state))
        finally:
            self.records.flush()
            self._context.page.enter(Activity.SCRIPT)
        if state is StepState.LOST:
            raise self._repairs.lost()
        self._context.page.begin_turn(waits_for_peers=False)
        if self._ending is not None:
            raise self._ending
        return self.progress.cursor

    @property
    def is_complete(self) -> bool:
        """Whether every transaction of the job is committed, or its callback host has ended it."""
        is_last = self._job.work_plan.next_work(self.progress.cursor) is None
        return is_last or self._callback_host.is_over or self._error is not None

    @property
    def error(self) -> Exception | None:
        """The error of the script that has ended the stage on all workers, None without one."""
        return self._error or self._callback_host.error

    def close(self) -> None:
        """Give memory and threads back, before another stage takes its own."""
        self._saver.close()
        for transaction in self._transactions.values():
            transaction.vectors.close()

    def _act(self, state: StepState) -> StepEvent:
        """Do the work of ``state``."""
        work, activity = _WORK[state]
        self._context.page.begin_turn(waits_for_peers=state in TOGETHER)
        self._context.page.enter(activity)
        try:
            return work(self)
        except WorldBroken:
            self._detected = self._detected or time.monotonic()
            return StepEvent.BROKEN

    def _join(self) -> StepEvent:
        self._context.page.phase = Phase.RESTORING
        membership = self._membership
        mine = self._mine
        membership.join(NO_STATE)
        membership.together(lambda: compare(membership, mine))
        return StepEvent.FORMED

    def _catch_up(self) -> StepEvent:
        self._exchange.map_peers()
        versions = self._membership.versions
        newest = max(versions)
        if newest == NO_STATE or min(versions) < newest:
            shared = self._membership.together(
                lambda: share_newest(self._membership, self._mine, self._saver)
            )
            self._context.page.phase = Phase.COMPILING  # nothing is read any more
            if newest == NO_STATE or self._version != newest:
                with self._moving:
                    self._rest.restored(is_saved=newest == NO_STATE)
                    self.progress.restore(self._state.load(shared.tensors, is_own=shared.is_own))
                self._state.resume(self.progress.cursor, shared.notes)
                self._forget_leaves()
                if shared.is_restored:
                    self._step = self._step.going_on_from(self._state.saved)
                    self._resume_unfinished(shared.due)
        self._is_loaded = True
        self.records.joined(self.progress.cursor)
        self.records.adopted()
        self._context.page.step = self.progress.cursor.step
        self._context.page.phase = Phase.COMPILING
        return self._go_on(StepEvent.CAUGHT_UP)

    def _resume_unfinished(self, due: Due | None) -> None:
        """Go on after a checkpoint that was made before all that belongs to its step was done."""
        if self._callback_host.cuts_epoch and not self._callback_host.is_over:
            self.progress.cut_epoch()
        cursor, work_plan = self.progress.cursor, self._job.work_plan
        is_whole = cursor.step == work_plan.begin or work_plan.is_save_point(cursor)
        self._saver.is_unfinished = due is not None or not is_whole
        if due is not None and self._callback_host.error is None:
            self._is_committing, self._outcome = True, _NOTHING_AGREED
            self._callback_host.after(self.progress.repeat(due))

    def _compute(self) -> StepEvent:
        self._rest.settle()
        work = self._job.work_plan.next_work(self.progress.cursor)
        assert work is not None
        self._transaction = self._transactions[work]
        if self._transaction.lacks_samples:
            return StepEvent.LACKING
        self.records.transaction_began()
        self._visit(Site.COMPUTE)
        if not self.progress.cursor.turn:  # a callback host sees whole updates
            self._enter_callbacks()
            self._callback_host.before(work, self.progress.cursor)
            self._context.page.enter(Activity.COMPUTE)
        owned, began = self._assignment.owned_by(self._membership.me), time.monotonic()
        event = self._try(
            lambda: self._transaction.compute(self.progress.cursor.step, owned),
            StepEvent.COMPUTED,
        )
        if work is Work.TRAIN:
            self._balancer.computed(len(owned), time.monotonic() - began)
        return event

    def _gather(self) -> StepEvent:
        cursor, owned = self.progress.cursor, self._assignment.owned_by(self._membership.me)
        communicator = self._membership.communicator
        return self._try(
            lambda: self._transaction.gather(cursor, owned, communicator), StepEvent.GATHERED
        )

    def _try(self, work: Callable[[], None], event: StepEvent) -> StepEvent:
        """Do work that runs the script's code; return ``event``, or the end by an error of its own.

        A worker that raises dies of it, and another one does its work.  The last one speaks for
        all: every worker has raised that came to this work.
        """
        try:
            work()
        except (JobError, WorldBroken):
            raise
        except Exception as error:
            if self._membership.world.size > 1:
                raise
            self._error = error
            self._forget_leaves()
            return StepEvent.EXHAUSTED
        return event

    def _reduce(self) -> StepEvent:
        self._saver.before_sum()
        self._balancer.before_sum(self.progress.cursor.step)
        transaction = self._transaction
        roots = transaction.roots(self._assignment, self._membership.me)
        # Only after the vote is the total whole: peers may not have written their slices yet.
        self._sum = self._exchange.sum(
            transaction.work, roots, self._assignment, self._peers_have_come
        )
        return StepEvent.REDUCED

    def _peers_have_come(self) -> None:
        self._context.page.enter(Activity.EXCHANGE)
        self._visit(Site.REDUCE)

    def _vote(self) -> StepEvent:
        self._visit(Site.VOTE)
        requests = self._context.page.requests
        # Clocks differ, and one wish is enough.
        is_due = self._membership.is_first and self._clock.is_due(time.monotonic())
        flags = ballot(
            is_finite=self._sum.is_finite,
            save=self._saver.bits(),
            wants_save=is_due or bool(requests and RequestFlag.SAVE in requests),
            wants_stop=bool(requests and RequestFlag.STOP in requests),
        )
        self._outcome = outcome(self._membership.communicator.agree(flags))
        if not self._outcome.is_yes:
            raise WorldBroken("a peer's exchange failed")
        return StepEvent.AGREED

    def _refuse(self) -> StepEvent:
        self._membership.communicator.agree(REFUSAL)
        raise WorldBroken("this worker's exchange failed")

    def _apply(self) -> StepEvent:
        self._visit(Site.APPLY)
        with self._moving:
            work, total = self._transaction.work, self._transaction.split(self._sum.vector)
            self._saver.hear(self._outcome)
            if work is Work.TRAIN and not self._outcome.is_finite:
                self._ending = self.progress.refusal(total)
                if self._ending is not None:
                    return StepEvent.EXHAUSTED
            commit = self.progress.commit(work, total)
            self._is_committing = True
            if commit.cursor.turn or not self._callback_host.acts_after(commit):
                if not commit.cursor.turn:
                    self._show(commit)
                return self._go_on(StepEvent.APPLIED)
            self._rest.hold(commit)
        self._show(commit)
        return self._go_on(StepEvent.APPLIED)

    def _show(self, commit: Commit) -> None:
        self._enter_callbacks()
        self._callback_host.after(commit)
        self._context.page.enter(Activity.APPLY)

    def _enter_callbacks(self) -> None:
        if self._has_callbacks:
            self._context.page.enter(Activity.CALLBACKS)

    def _agree(self) -> StepEvent:
        page = self._context.page
        agree_on_effects(self._membership, self._state, self.progress.cursor, page)
        page.enter(Activity.APPLY)
        with page.needing_no_peer():  # the graphs of another shape may take long to trace
            return self._go_on(StepEvent.DECIDED)

    def _go_on(self, event: StepEvent) -> StepEvent:
        """Return ``event`` after the work that follows a commit, if nothing else comes first."""
        if self._is_committing and self._callback_host.cuts_epoch:
            self.progress.cut_epoch()
        if self._is_committing and self.is_complete and not self._callback_host.has_effects:
            self._end_stage()
        if self._callback_host.has_effects:
            return StepEvent.CALLED
        if self._is_committing:
            self._is_committing = False
            with self._moving:
                self._rest.settle()
                self._transaction_committed(self._outcome)
        if self._has_ended():
            return StepEvent.EXHAUSTED
        with self._moving:
            if self._saver.has_lost(self.progress.cursor):
                self._begin_save()
        return event

    def _end_stage(self) -> None:
        if not self._has_told_end:
            self._has_told_end = True
            if self.error is None:
                with self._moving:
                    self.progress.finish()
                self._callback_host.end()

    def _repair(self) -> StepEvent:
        self._repairs.attempts += 1
        if self._repairs.is_hopeless:
            return StepEvent.HOPELESS
        self._context.page.phase = Phase.REPAIRING
        before = self._membership.world
        phases = self._membership.repair(self._version, lambda: self._visit(Site.REPAIR))
        with self._moving:
            self._saver.world_changed()
        self._clock.world_changed()
        membership = self._membership
        self._balancer.world_changed()
        self._assignment = adopt(self._assignment, membership.world, membership.host_of)
        self._is_scattered = True
        attempts = self._repairs.attempts
        self.records.world_changed(before, self._detected, phases, attempts=attempts)
        self._detected = 0.0
        return StepEvent.FORMED

    def _finish(self) -> StepEvent:
        """Wait for the checkpoint in flight, then make the last one, with votes but no steps."""
        self._context.page.phase = Phase.SAVING
        self._membership.together(self._saver.before_sum)
        cursor = self.progress.cursor
        can_save = self._error is None or self._job.work_plan.is_save_point(cursor)
        with self._moving:
            if self._saver.is_settled(cursor) or not (can_save or self._saver.is_busy):
                return StepEvent.SETTLED
            if can_save:
                self._saver.give_up_if_hopeless(cursor)
                self._begin_save()
        self._saver.wait(_POLL_S)
        flags = ballot(is_finite=True, save=self._saver.bits())
        agreed = outcome(self._membership.communicator.agree(flags))
        with self._moving:
            self._saver.hear(agreed)
        return StepEvent.PENDING

    @property
    def _mine(self) -> Mine:
        return Mine(self._context, self._job, self._state, self.progress.cursor)

    @property
    def _version(self) -> int:
        return self.progress.cursor.version if self._is_loaded else NO_STATE

    def _transaction_committed(self, agreed: Outcome) -> None:
        """Do the work after every commit: tell the agent, save if due, note a request to stop."""
        now, is_step = time.monotonic(), self._transaction.work is Work.TRAIN
        self._clock.committed(
            now,
            is_step=is_step,
            is_saving=self._saver.is_busy,
        )
        self._forget_leaves()
        if (is_step and self._balancer.committed(self.progress.cursor.step)) or self._is_scattered:
            self._deal_again()
        next(self._preparing, None)
        self._repairs.attempts = 0
        cursor, page = self.progress.cursor, self._context.page
        page.phase = Phase.TRAINING
        page.commit(cursor.step)
        page.generation = self._membership.world.generation
        if self._membership.is_first:
            self._teller.committed(now, cursor, self._clock.next_at, self.progress.of_epoch)
        self._is_stopping = self._is_stopping or agreed.is_stop_wanted
        self._saver.prepare(lambda: self._state.tensors(cursor))
        self._saver.want(agreed)
        if self._saver.is_due(cursor):
            self._begin_save()
        else:
            self._saver.verify(cursor, lambda: self._state.tensors(cursor))

    def _begin_save(self) -> None:
        if self._saver.is_busy:
            return
        cursor = self.progress.cursor
        self.records.flush()  # the journal is never behind a checkpoint
        # A request that comes during the copy wants a newer state than this one.
        asked, now = self._context.page.asked(RequestFlag.SAVE), time.monotonic()
        self._context.page.enter(Activity.COPY)
        if self._saver.begin(cursor, lambda: self._state.tensors(cursor), self._fields()):
            self._clock.began(now, self._saver.in_flight_bytes)
            if self._saver.serves_requests:
                self._context.page.answer(RequestFlag.SAVE, asked)
            self._visit(Site.SAVE, step=cursor.step)

    def _fields(self, *, is_complete: bool | None = None) -> dict[str, object]:
        """Return the fields of a manifest's cursor that describe the state of just now."""
        measured = self.progress.measured
        is_complete = self.is_complete if is_complete is None else is_complete
        fields = self._state.fields(is_complete=is_complete)
        fields[STEP] = to_plain(self._step)
        return fields if measured is None else measured.into(fields)

    def _deal_again(self) -> None:
        """Own microbatches in other runs, or in runs again, as a world without a death does.

        ``adopt`` moves orphans only, so that the step is soon done again.  What it leaves is
        scattered: more roots to exchange, more vectors to hold.  Every survivor commits the
        same transaction, so all change owners at the same point.
        """
        self._is_scattered = False
        self._assignment = self._balancer.assignment
        self._exchange.reassign()
        for transaction in self._transactions.values():
            transaction.give_back()

    def _forget_leaves(self) -> None:
        for transaction in self._transactions.values():
            transaction.forget()

    def _has_ended(self) -> bool:
        """Return whether the loop ends here: no update is left or wanted, or a stop is due."""
        cursor, work_plan = self.progress.cursor, self._job.work_plan
        if self._ending is not None or self.is_complete:
            return True
        return self._is_stopping and work_plan.is_save_point(cursor)

    def _visit(self, site: Site, step: int | None = None) -> None:
        """Pass a fault site, by default at the step of the current update or validation."""
        if self._context.injector.is_idle:
            return
        self.records.flush()
        if step is None:
            work = self._job.work_plan.next_work(self.progress.cursor)
            step = self.progress.cursor.step + (work is not Work.EVALUATE)
        self._context.injector.visit(step, site)


_WORK: dict[StepState, tuple[Callable[[TrainingLoop], StepEvent], Activity]] = {
    StepState.JOINING: (TrainingLoop._join, Activity.JOIN),
    StepState.CATCHING_UP: (TrainingLoop._catch_up, Activity.RESTORE),
    StepState.COMPUTING: (TrainingLoop._compute, Activity.COMPUTE),
    StepState.GATHERING: (TrainingLoop._gather, Activity.READ),
    StepState.REDUCING: (TrainingLoop._reduce, Activity.WAIT),
    StepState.VOTING: (TrainingLoop._vote, Activity.VOTE),
    StepState.REFUSING: (TrainingLoop._refuse, Activity.VOTE),
    StepState.APPLYING: (TrainingLoop._apply, Activity.APPLY),
    StepState.AGREEING: (TrainingLoop._agree, Activity.CALLBACKS),
    StepState.REPAIRING: (TrainingLoop._repair, Activity.REPAIR),
    StepState.FINISHING: (TrainingLoop._finish, Activity.FINISH),
}


def preparing(
    replica: Replica, job: TrainingJob, enter: Callable[[Activity], None]
) -> Iterator[None]:
    """Prepare the replica for one more size of microbatches each time this is read on.

    After the last one, what that has freed is returned to the system.
    """
    prepare: Callable[[Microbatch], None] | None = getattr(replica, "prepare", None)
    known: set[tuple[Hashable, int]] = set()
    for key, read in _every_size(job) if prepare else ():
        if prepare and key[1] and key not in known:
            known.add(key)
            enter(Activity.COMPILE)
            prepare(read())
            enter(Activity.APPLY)
            yield
    trim_memory()


def _every_size(
    job: TrainingJob,
) -> Iterator[tuple[tuple[Hashable, int], Callable[[], Microbatch]]]:
    """Yield kind and size of microbatches with how to read one; of a pipeline of one batch."""
    validated = job.first_of_validation
    firsts = None if validated is None else job.first_microbatch, validated
    sources = (job.data, job.order), (job.validation, job.validation_order)
    for first, (data, order) in zip(firsts, sources, strict=True):
        kind = None if first is None else first.kind
        for m in range(job.microbatches):
            if isinstance(data, Feed) and isinstance(order, BatchOrder):
                batch = data.first()
                rows = order.bounds(batch.samples, m)
                yield (kind, rows[1] - rows[0]), partial(part_of, data, batch, rows, 0)
            elif data is not None and isinstance(order, SampleOrder):
                assert not isinstance(data, Feed)
                for index in (0, order.steps_per_epoch - 1):
                    ids = order.microbatch(index, m)
                    yield (kind, len(ids)), partial(read_microbatch, data, ids, 0)
