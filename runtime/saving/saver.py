"""Checkpoints made in the background of training, one at a time.

A save costs the training loop one copy of this worker's share of the state (`agent_saver`).  The
host's writer does the rest.  Votes tell when all know the outcome (`recovery.step`), so all
workers always agree on the save in flight.

All workers save, each its part of the share of its host (`recovery.saves`).  No checkpoint is
committed whose state was not compared (`MemoryCheck`).

A file system that hangs answers nothing, not even an error.  So the agent gives up a writer that
makes no progress, and answers in its place (`writer_link`).  No save stays in flight for ever.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
import weakref
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.tensor import Digest, ShardLayout, Tensors, specs_of, whole_bytes_of
from holdfast.recovery.event import CheckpointCommitted
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.placement import SavePart, save_parts
from holdfast.recovery.saves import SaveTicket
from holdfast.recovery.step import (
    REFUSAL,
    Bit,
    Outcome,
    compare_digests,
    is_save_committed,
)
from holdfast.recovery.work_plan import WorkPlan
from holdfast.runtime.errors import StoppedEarly, WorldLost
from holdfast.runtime.exchange.membership import Membership, WorldBroken
from holdfast.runtime.run.checkpoint_events import CheckpointFailed, CheckpointSkipped
from holdfast.runtime.run.events import MemoryDiffers
from holdfast.runtime.saving.agent_saver import (
    AgentSaver,
    PendingSave,
    SnapshotNotWritten,
    reason_of,
)
from holdfast.runtime.saving.committer import MOST_THREADS
from holdfast.runtime.saving.plan import SavePlan, SaveRequest, SaveTerms
from holdfast.runtime.system.daemon_executor import DaemonExecutor
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import HaltOrder
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords

WORTH_A_FILE_BYTES = 64 * 2**20
LARGEST_FILE_BYTES = 4 * 2**30

MAX_FAILURES = 3
"""Attempts at the final checkpoint before the job stops without it."""

_LOOK_S = 0.05
_NO_FIELDS: Mapping[str, object] = MappingProxyType({})


class Saver:
    """This worker's part of making checkpoints."""

    def __init__(
        self,
        context: WorkerContext,
        membership: Membership,
        work_plan: WorkPlan,
        terms: SaveTerms,
        records: LoopRecords,
        way: AgentSaver | None = None,
    ) -> None:
        self._context = context
        self._membership = membership
        self._work_plan = work_plan
        self._terms = terms
        self._records = records
        self._way = AgentSaver(context) if way is None else way
        self._check = MemoryCheck(context, membership, records)
        self._prepared_for: tuple[int, SavePart] | None = None
        """The world, and this worker's part of its saves."""
        self._flight: SaveInFlight | None = None
        self._is_wanted = False
        self._is_repeated = False
        """Whether the save in flight is of a state whose save a death has cut off."""
        self._lost_version: int | None = None
        """The state whose save a death has cut off, if no other one was begun since."""
        self._attempt = 0
        self.is_unfinished = False
        """Whether the saved state of ``saved_step`` lacks what follows the step: a validation,
        callbacks.  The state after them has to be saved as well."""
        self._failures: Counter[int] = Counter()
        self.saved_step = work_plan.begin  # the first step needs no checkpoint

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the state in the checkpoint in flight, 0 without one."""
        return 0 if self._flight is None else self._flight.nbytes

    def has(self, cursor: Cursor) -> bool:
        """Return whether the run directory holds the state of ``cursor``, with all that follows."""
        return self.saved_step == cursor.step and not self.is_unfinished

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is in flight."""
        return self._flight is not None

    @property
    def serves_requests(self) -> bool:
        """Whether a user who has asked just now may take the save in flight for the answer.

        One that is repeated may be there already, with a record from before the request.
        """
        return self._flight is not None and not self._is_repeated

    def want(self, agreed: Outcome) -> None:
        """Remember that a checkpoint is wanted, by the clock or by a user."""
        self._is_wanted = self._is_wanted or agreed.is_save_wanted

    def is_due(self, cursor: Cursor) -> bool:
        """Return whether a checkpoint of ``cursor`` is wanted now; a busy saver skips it."""
        work_plan = self._work_plan
        is_due = work_plan.is_save_due(cursor)
        if is_due and self._flight is not None:
            self._records.note(CheckpointSkipped(step=cursor.step))
        is_wanted = is_due or (self._is_wanted and work_plan.is_save_point(cursor))
        is_new = cursor.step != self.saved_step or self.is_unfinished
        return is_wanted and self._flight is None and is_new

    def has_lost(self, cursor: Cursor) -> bool:
        """Return whether a death has cut off the save of this very state.

        The step is due as before, and a checkpoint of the next one is no checkpoint of it.
        """
        return self._flight is None and self._lost_version == cursor.version

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
        self._is_repeated = self.has_lost(cursor)
        self._is_wanted = False
        self._lost_version = None
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
                f"{self._context.run_dir} in {MAX_FAILURES} attempts, for the reasons above; free "
                "space or make it writable, then run again: the run goes on from its newest "
                "checkpoint, or from step 0 if it has none"
            )

    def bits(self) -> Bit:
        """Return this worker's bits about the checkpoint in flight."""
        return Bit(0) if self._flight is None else self._flight.bits

    def hear(self, agreed: Outcome) -> None:
        """End the checkpoint in flight if all agree that it is over."""
        if self._flight is not None:
            match is_save_committed(agreed.save):
                case True:
                    self._committed(self._flight)
                case False:
                    self._failed(self._flight)

    def before_sum(self) -> None:
        """Compare states; a save whose states are equal goes on.

        Raises:
            WorldBroken: a member died; the save will be abandoned.
            WorldLost: the members' states differ, and no majority shows which is right.
        """
        self._check.compare()
        if self._flight is not None and not self._flight.is_compared:
            self._flight.is_compared = True
            with self._context.page.needing_no_peer():  # it may write all of the state
                self._flight.mine.compared()

    def world_changed(self) -> None:
        """Give up the checkpoint in flight: the world that began it exists no more."""
        self._check.world_changed()
        if self._flight is not None:
            self._lost_version = self._flight.version
            self._flight = None
            self._is_wanted = True

    def wait(self, timeout_s: float) -> None:
        """Wait up to ``timeout_s`` for the work in the background."""
        if self._flight is not None:
            self._flight.mine.wait(timeout_s)

    def is_settled(self, cursor: Cursor) -> bool:
        """Return whether nothing is in flight and ``cursor`` needs no further save."""
        return self._flight is None and self.has(cursor)

    def share_saved_step(self, source: int) -> None:
        """Tell all members the newest step that rank ``source`` knows to be on the disk."""
        step = np.array([self.saved_step], np.int64)
        self._membership.communicator.broadcast(step, source)
        self.saved_step = int(step[0])

    def prepare(self, state: Callable[[], Tensors]) -> None:
        """Take the memory for saves of this world ahead of the first one."""
        generation = self._membership.world.generation
        if self._prepared_for is None or self._prepared_for[0] != generation:
            self._prepare(self._part, state)

    @property
    def _part(self) -> SavePart:
        """This worker's part of each save of the world."""
        world, me = self._membership.world, self._membership.me
        return save_parts(world.workers, self._context.config.host_of)[me]

    def _prepare(self, part: SavePart, state: Callable[[], Tensors]) -> None:
        generation = self._membership.world.generation
        if self._prepared_for != (generation, part):
            self._prepared_for = generation, part
            plan, attempt = self._plan(state()), self._context.newest_save + 1
            self._way.prepare(plan, part, generation=generation, attempt=attempt)

    def save_halted(
        self, step: int, state: Tensors, fields: Mapping[str, object], order: HaltOrder
    ) -> str:
        """Save this worker's part of ``state`` and wait; return why it failed, "" if it did not.

        It needs no word of another worker, and runs beside the main thread, which changes no
        state any more.
        """
        part = order.part
        self._prepare(part, lambda: state)
        self._attempt = order.attempt
        mine = self._copied(self._request(step, part, fields), state)
        digest_then(state, mine.hand_over, is_alone=part.hosts * part.parts == 1)
        mine.compared()
        while not mine.is_done:
            if self._context.page.halt_order != order:  # a worker has died that had a part
                return "another worker has died meanwhile"
            mine.wait(_LOOK_S)
        return "" if mine.failure is None else reason_of(mine.failure)

    def close(self) -> None:
        """Give memory and threads back; nothing is in flight any more."""
        self._way.close()

    def verify(self, cursor: Cursor, state: Callable[[], Tensors]) -> None:
        """Begin a comparison of the states without a save, if one is due."""
        if self._work_plan.is_check_due(cursor):
            self._check.take(cursor.step, state())

    def _plan(self, state: Tensors) -> SavePlan:
        """Return what all saves of this stage have in common."""
        config = self._context.config
        specs = specs_of(state)
        nbytes = sum(spec.nbytes for spec in specs)
        hosts = len(set(config.host_of.values()))
        layout = ShardLayout(specs, shard_count(nbytes, hosts, config.options.shards))
        first = replace(config, worker=config.workers[0])
        return SavePlan(first, layout, self._terms, frozenset(self._context.unsound))

    def _launch(self, cursor: Cursor, state: Tensors, fields: Mapping[str, object]) -> SaveInFlight:
        self.prepare(lambda: state)
        self._attempt = self._context.newest_save = self._context.newest_save + 1
        mine = self._copied(self._request(cursor.step, self._part, fields), state)
        self._check.take(cursor.step, state, then=mine.hand_over)
        nbytes = sum(tensor.nbytes for tensor in state.values())
        return SaveInFlight(cursor.step, cursor.version, nbytes, mine, witnessed_s())

    def _request(self, step: int, part: SavePart, fields: Mapping[str, object]) -> SaveRequest:
        launch, world = self._context.config.generation, self._membership.world.generation
        ticket = SaveTicket(launch, world, step, self._attempt, part.hosts)
        return SaveRequest(ticket, part, fields, began=time.monotonic())

    def _copied(self, request: SaveRequest, state: Tensors) -> PendingSave:
        """Copy this worker's share; if it cannot, all workers learn that the save fails."""
        try:
            return self._way.begin(request, state)
        except (CheckpointError, OSError, MemoryError) as error:
            failed = PendingSave(self._context, request)
            failed.fail(error)
            return failed

    def _committed(self, flight: SaveInFlight) -> None:
        self._flight = None
        self._context.newest_save += 1
        self._way.keep_only(self._attempt)
        self._failures.clear()
        self.saved_step, self.is_unfinished = flight.step, False
        self._context.rejected.discard(flight.step)
        if self._membership.is_first:
            seconds = round(witnessed_s() - flight.began, 6)
            worker, longest_s = self._context.config.worker, self._records.longest_step_s
            self._context.report(CheckpointCommitted(worker, flight.step, seconds, longest_s))

    def _failed(self, flight: SaveInFlight) -> None:
        """Report the failure to journal and user, and go on training."""
        self._flight = None
        self._failures[flight.step] += 1
        failure = flight.mine.failure
        if failure is None or isinstance(failure, SnapshotNotWritten):
            return  # the head tells it
        reason = reason_of(failure)
        self._context.journal.record(CheckpointFailed(step=flight.step, reason=reason))
        self._context.notify(f"the checkpoint of step {flight.step} failed: {reason}")


@dataclass(slots=True)
class SaveInFlight:
    """A save from its beginning to its commit or failure."""

    step: int
    version: int
    """That of the cursor: what was saved is here as long as no transaction follows."""
    nbytes: int
    mine: PendingSave
    began: float
    """When its copy was whole, in seconds that this process has witnessed."""
    is_compared: bool = False
    """Whether all workers were found to have the same state."""

    @property
    def bits(self) -> Bit:
        """What this worker says of the save in a vote."""
        # Read before the failure: once a save is done, its failure is final.
        is_done = self.mine.is_done
        if self.mine.failure is not None:
            return Bit.SETTLED
        return Bit.SETTLED | Bit.INTACT if is_done else Bit.INTACT


def shard_count(nbytes: int, hosts: int, asked: int | None = None) -> int:
    """Return the shards of ``nbytes`` of state; ``asked`` is the user's choice, if any.

    Those of a host are written and synced at once, and more of them than a disk or a server serves
    at once cost only more names.  A file is bounded, so that a repair holds it in memory, and no
    file system meets a file that it cannot stripe.  The count follows from the size, and from the
    ``hosts`` of the launch: all workers come to the same, on any machine.  All hosts have as many.
    """
    if asked is not None:
        return asked
    paying = min(MOST_THREADS * hosts, -(-nbytes // WORTH_A_FILE_BYTES))
    count = max(1, paying, -(-nbytes // LARGEST_FILE_BYTES))
    return count if count < hosts else -(-count // hosts) * hosts


class MemoryCheck:
    """One worker's part in comparing the states of a world by their digests.

    The thread takes a digest after a commit, while the next transaction is computed: that leaves
    the arrays of the state as they are.  Digests are compared before the sum of that transaction,
    so a replica whose memory is wrong takes part in no sum after the check that finds it.  Sums
    between two checks may hold wrong contributions; with a check after every step there are none.
    """

    def __init__(
        self, context: WorkerContext, membership: Membership, records: LoopRecords
    ) -> None:
        self._context = context
        self._membership = membership
        self._records = records
        self._thread = DaemonExecutor(1, "holdfast-digest")
        weakref.finalize(self, self._thread.shutdown)
        self._pending: tuple[int, Future[str | None]] | None = None

    def take(
        self,
        step: int,
        state: Tensors,
        then: Callable[[Tensors, str], None] = lambda _state, _digest: None,
    ) -> None:
        """Begin to digest ``state``, which all members hold after ``step``, for ``compare``.

        The thread calls ``then`` with the state and its digest.  A member that is alone has
        no peer to compare with, and takes no digest.
        """
        is_alone = self._membership.communicator.size == 1
        self._pending = step, self._thread.submit(digest_then, state, then, is_alone=is_alone)

    def world_changed(self) -> None:
        """Drop the digest: the world that took it exists no more."""
        if self._pending is not None:
            with self._context.page.needing_no_peer():
                wait([self._pending[1]])  # the state is about to change
        self._pending = None

    def compare(self) -> None:
        """Compare the digest of ``take`` with all members'; all must call this at the same point.

        A worker that differs from the majority does not return: it fences itself.

        Raises:
            WorldBroken: a member died, or is about to because its memory is wrong.
            WorldLost: the members differ, and no majority shows which is right.
        """
        if self._pending is None:
            return
        (step, taken), self._pending = self._pending, None
        with self._context.page.needing_no_peer():  # a large state takes its time
            digest = taken.result()
        if digest is None:
            return
        everyones = self._membership.communicator.allgather_bytes(bytes.fromhex(digest))
        minority = compare_digests(everyones)
        if minority:
            self._settle(step, minority)

    def _settle(self, step: int, minority: Collection[int]) -> None:
        """Act on a difference: raise, or fence this worker; never returns."""
        workers = [self._membership.world.workers[rank] for rank in minority]
        has_majority = len(workers) < self._membership.world.size
        self._records.note(
            MemoryDiffers(step=step, workers=tuple(workers), has_majority=has_majority)
        )
        if not has_majority:
            # A peer whose comparison broke at the last moment must not go on alone.  It votes
            # "no" now, and sees this vote before it can see this worker's death.
            with contextlib.suppress(WorldBroken):
                self._membership.communicator.agree(REFUSAL)
            raise WorldLost(
                f"the states of workers {workers} differ after step {step}, and no majority shows "
                "which is right; the step is not saved, the job goes back to its last checkpoint"
            )
        rank = self._membership.communicator.rank
        if rank not in minority:
            raise WorldBroken(f"the memory of workers {workers} is wrong")
        self._context.notify(
            f"the memory of worker {self._membership.me} is wrong after step {step}: "
            "its state is not that of the majority; it is fenced"
        )
        os.kill(os.getpid(), signal.SIGKILL)


def digest_then(
    state: Tensors, then: Callable[[Tensors, str], None], *, is_alone: bool
) -> str | None:
    """Return the digest of ``state``, after a call with both; None if it has none to compare."""
    digest = Digest()
    for name in () if is_alone else sorted(state):
        digest.update(whole_bytes_of(state[name]))
    then(state, digest.hexdigest())
    return None if is_alone else digest.hexdigest()
