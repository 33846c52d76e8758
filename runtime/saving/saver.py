"""Checkpoints made in the background of training, one at a time.

A save costs the training loop one copy of this worker's share of the state.  The agent's
writer makes the copy durable (`shard_writers`).  Votes decide the next phase of the save
(`recovery.vote`), so all workers always agree on the save in flight.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from types import MappingProxyType

import numpy as np

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.format.layout import ShardLayout, specs_of
from holdfast.checkpoint.format.record import Header, ShardRecord
from holdfast.checkpoint.format.tensor import Tensors
from holdfast.recovery.cursor import Cursor
from holdfast.recovery.placement import Slices, second_slices
from holdfast.recovery.vote import Bit, Outcome, SavePhase, after_vote
from holdfast.runtime.errors import StoppedEarly
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.run.intruder import refuse_intruder
from holdfast.runtime.saving.checkpoint_care import Upkeep
from holdfast.runtime.saving.memory_check import MemoryCheck
from holdfast.runtime.saving.save_in_flight import SaveInFlight
from holdfast.runtime.saving.save_terms import SaveTerms
from holdfast.runtime.saving.shard_writers import Shards, SnapshotNotWritten
from holdfast.runtime.saving.snapshot import SavePlan
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords

MAX_FAILURES = 3
"""Attempts at the final checkpoint before the job stops without it."""

_NOTHING_SAVED = -1
_NO_FIELDS: Mapping[str, object] = MappingProxyType({})
_WITH_COPIES = 2


class Saver:
    """This worker's part of making checkpoints."""

    def __init__(
        self,
        context: WorkerContext,
        membership: Membership,
        terms: SaveTerms,
        records: LoopRecords,
    ) -> None:
        self._context = context
        self._membership = membership
        self._terms = terms
        self._records = records
        self._store = context.open_store()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-saver")
        self._shards = Shards(context, self._store, self._thread)
        self._check = MemoryCheck(context, membership, records)
        self._prepared_for = 0
        self._upkeep = Upkeep(context, self._store, terms.retention, self._thread.submit)
        self._downgrades_told: set[str] = set()
        self._flight: SaveInFlight | None = None
        self._is_wanted = False
        self._attempt = 0
        self._failures: Counter[int] = Counter()
        # The first step needs no checkpoint, unless the job does not train and only saves.
        trains = context.config.options.trains
        self.saved_step = terms.work_plan.begin if trains else _NOTHING_SAVED

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is in flight."""
        return self._flight is not None

    def want(self, *, is_asked: bool) -> None:
        """Remember that a checkpoint was asked for."""
        self._is_wanted = self._is_wanted or is_asked

    def is_due(self, cursor: Cursor) -> bool:
        """Return whether a checkpoint of ``cursor`` is wanted now; a busy saver skips it."""
        work_plan = self._terms.work_plan
        is_due = work_plan.is_save_due(cursor)
        if is_due and self._flight is not None:
            self._records.note("checkpoint_skipped", step=cursor.step)
        is_wanted = is_due or (self._is_wanted and work_plan.is_save_point(cursor))
        return is_wanted and self._flight is None and cursor.step != self.saved_step

    def begin(
        self,
        cursor: Cursor,
        state: Callable[[], Tensors],
        fields: Mapping[str, object] = _NO_FIELDS,
    ) -> bool:
        """Copy this worker's share of the state and write it in the background.

        Returns whether a save was begun; at most one is in flight.  The manifest's cursor
        will hold ``fields``, a JSON object.
        """
        if self._flight is not None:
            return False
        self._attempt = next(self._context.saves)
        self._is_wanted = False
        with self._context.page.needing_no_peer():  # it may wait for memory, and copies
            self._flight = self._launch(cursor, state(), fields)
        return True

    def give_up_if_hopeless(self, cursor: Cursor) -> None:
        """Stop the job after too many failed saves of its last step; earlier failures do not.

        Raises:
            StoppedEarly: too many saves of ``cursor`` have failed.
        """
        if self._failures.get(cursor.step, 0) >= MAX_FAILURES:
            raise StoppedEarly(
                f"the checkpoint of step {cursor.step} could not be written to "
                f"{self._context.run_dir} in {MAX_FAILURES} attempts; free space or make it "
                "writable, then run again: the run resumes from its newest checkpoint"
            )

    def bits(self) -> Bit:
        """Return this worker's bits about the checkpoint in flight."""
        return Bit(0) if self._flight is None else self._flight.bits

    def hear(self, agreed: Outcome) -> None:
        """Move the checkpoint in flight to the phase that all agreed on."""
        flight = self._flight
        if flight is None:
            return
        flight.phase = after_vote(flight.phase, agreed.save)
        if flight.phase is SavePhase.COMMITTED:
            self._committed(flight)
        elif flight.phase is SavePhase.FAILED:
            self._failed(flight)

    def before_sum(self) -> None:
        """Compare states, collect the records of durable shards, begin the commit.

        Raises:
            WorldBroken: a member died; the save will be abandoned.
            WorldLost: the members' states differ, and no majority shows which is right.
        """
        self._check.compare()
        flight = self._flight
        if flight is None or flight.phase is not SavePhase.GATHERING:
            return
        mine = flight.mine.record.encode()
        records = self._membership.communicator.allgather_bytes(mine)
        flight.phase = SavePhase.COMMITTING
        if self._membership.is_first:
            flight.commit = self._thread.submit(self._commit, flight, records)

    def world_changed(self) -> None:
        """Give up the checkpoint in flight: the world that began it exists no more."""
        self._check.world_changed()
        if self._flight is not None:
            # The staging stays until the next commit: if all die before, the agent needs it.
            self._flight = None
            self._is_wanted = True

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the work in the background."""
        flight = self._flight
        if flight is not None and not flight.mine.is_done:
            flight.mine.wait(timeout_s)
        elif flight is not None and flight.commit is not None:
            wait([flight.commit], timeout_s)

    def is_settled(self, cursor: Cursor) -> bool:
        """Return whether nothing is in flight and ``cursor`` needs no further save."""
        return self._flight is None and self.saved_step == cursor.step

    def share_saved_step(self, source: int) -> None:
        """Tell all members the newest step that rank ``source`` knows to be on the disk."""
        step = np.array([self.saved_step], np.int64)
        self._membership.communicator.broadcast(step, source)
        self.saved_step = int(step[0])

    def prepare(self, cursor: Cursor, state: Callable[[], Tensors]) -> None:
        """Take the memory for snapshots of this world ahead of the first one."""
        generation = self._membership.world.generation
        if self._prepared_for != generation:
            self._prepared_for = generation
            self._shards.prepare(self._plan(cursor, state()), self._slices())

    def close(self) -> None:
        """Give memory and threads back; nothing is in flight any more."""
        self._shards.close()
        self._thread.shutdown(wait=False)

    def verify(self, cursor: Cursor, state: Callable[[], Tensors]) -> None:
        """Begin a comparison of the states without a save, if one is due."""
        if self._terms.work_plan.is_check_due(cursor):
            self._check.take(cursor.step, state())

    def _plan(
        self, cursor: Cursor, state: Tensors, fields: Mapping[str, object] = _NO_FIELDS
    ) -> SavePlan:
        """Return the save of ``state`` in this world."""
        return SavePlan(
            Header(self._context.config.run_id, self._membership.world.generation, cursor.step),
            self._attempt,
            ShardLayout(specs_of(state), self._membership.communicator.size),
            cursor={**self._terms.fields, "step": cursor.step, **fields},
            numerics=self._terms.numerics,
        )

    def _slices(self) -> Slices:
        """Return the slices that this worker copies into snapshots, its own first."""
        rank = self._membership.communicator.rank
        workers = self._membership.world.workers
        # On one host a second copy, made only if asked for, is lost with its worker alone.
        has_copies = self._context.config.options.snapshot_copies == _WITH_COPIES
        domains = [str(worker) if has_copies else "" for worker in workers]
        return (rank, *second_slices(domains)[rank])

    def _launch(self, cursor: Cursor, state: Tensors, fields: Mapping[str, object]) -> SaveInFlight:
        plan = self._plan(cursor, state, fields)
        began = time.monotonic()
        mine = self._shards.begin(plan, self._slices(), state)
        self._check.take(cursor.step, state, then=mine.hand_over)
        return SaveInFlight(plan, self._store.staging(*plan.key), mine, began)

    def _commit(self, flight: SaveInFlight, records: list[bytes]) -> int:
        """Make the checkpoint visible and drop old ones; runs on rank 0's saver thread."""
        manifest = flight.plan.manifest([ShardRecord.decode(record) for record in records])
        refuse_intruder(self._context.run_dir, manifest.run_id)
        flight.staging.commit(manifest)
        for reason in self._store.disk.new_downgrades(self._downgrades_told):
            self._context.journal.record("storage_downgrade", reason=reason)
            self._context.notify(f"checkpoints are at risk: {reason}")
        self._upkeep.committed(flight.step, flight.plan.header.generation)
        return manifest.nbytes

    def _committed(self, flight: SaveInFlight) -> None:
        self._flight = None
        self._failures.clear()
        self.saved_step = flight.step
        if flight.commit is not None:
            seconds = round(time.monotonic() - flight.began, 6)
            size = flight.commit.result()
            self._records.note("checkpoint", step=self.saved_step, seconds=seconds, bytes=size)
            step_seconds = self._records.longest_step_s
            self._context.tell_agent(
                {
                    "kind": "checkpoint",
                    "step": self.saved_step,
                    "seconds": seconds,
                    "step_seconds": step_seconds,
                }
            )

    def _failed(self, flight: SaveInFlight) -> None:
        """Report the failure to journal and user, and go on training."""
        self._flight = None
        self._failures[flight.step] += 1
        failure = flight.failure
        if failure is not None and not isinstance(failure, SnapshotNotWritten):
            self._context.journal.record("checkpoint_failed", step=flight.step, reason=str(failure))
            self._context.notify(f"the checkpoint of step {flight.step} failed: {failure}")
            if not isinstance(failure, (CheckpointError, OSError)):
                raise failure
        if self._membership.is_first:
            self._thread.submit(flight.staging.abandon)
