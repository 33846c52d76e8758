"""The contributions of one transaction: the vector that each owned microbatch adds to the total.

Two kinds share one shape: a flat vector of the replica's part, then the ledger's lanes
(`recovery.ledger`), which prove which samples went in:

* an update of the model: one microbatch of the step's batch is one leaf;
* a pass over validation data: leaf m is the sum over the m-th microbatch of
  every batch of the pass.

Computed leaves stay until the transaction is committed.  So a transaction that is redone
after a death computes only the adopted leaves.

Samples are read by their numbers, or come as batches from a pipeline.  There one worker reads for
all, or each makes the rows of its leaves.  A sample has no number of its own then: its place in
the epoch, or in the validation, is its number for the ledger.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from holdfast.recovery.errors import LedgerUnreadable
from holdfast.recovery.ledger import (
    LANES,
    Cursor,
    FingerprintTable,
    fingerprint_of_run,
    from_lanes,
    write_lanes,
)
from holdfast.recovery.order import BatchOrder, SampleOrder
from holdfast.recovery.reduction import FloatVector, Node, PartialSums, maximal_nodes
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.recovery.world import Assignment, WorkerId
from holdfast.runtime.data.batch import OwnRows, WholeBatch
from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.samples import Data, read_microbatch
from holdfast.runtime.data.stream import BatchShare
from holdfast.runtime.errors import RecoveryImpossible
from holdfast.runtime.exchange.membership import Communicator
from holdfast.runtime.exchange.memory import SharedVectors
from holdfast.runtime.model.replica import Microbatch, PassLayout, Replica
from holdfast.runtime.system.activity import Activity
from holdfast.runtime.system.worker_status import WorkerStatus


@dataclass(frozen=True, slots=True)
class Total:
    """The agreed sum of a transaction; the arrays are valid until the next exchange."""

    contribution: FloatVector
    samples: int
    fingerprint: int


class Transaction:
    """The leaves of one kind of work that this worker has computed and folded so far."""

    def __init__(self, work: Work, maker: LeafMaker, microbatches: int) -> None:
        self.work = work
        self.size = maker.size + LANES
        self._maker = maker
        # One vector for the leaf being computed, and at most one held for each microbatch.
        self.vectors = SharedVectors.create(self.size, microbatches + 1)
        self._sums = PartialSums(microbatches, self.vectors.allocate)
        self.lacks_samples = maker.gathers
        """Whether the samples must be gathered before the leaves can be computed."""

    def gather(self, cursor: Cursor, owned: Collection[int], communicator: Communicator) -> None:
        """Get the samples of the leaves in ``owned``; all workers call this together.

        Raises:
            WorldBroken: a member died.
        """
        # An update reads all that is owned: another share would begin the pass anew.
        leaves = owned if self.work is Work.TRAIN else self._sums.missing(owned)
        self._maker.gather(cursor, leaves, communicator)
        self.lacks_samples = False

    def compute(self, index: int, owned: Collection[int]) -> None:
        """Compute the leaves in ``owned`` of update ``index`` (from 0) that are still missing."""
        body = self._maker.size
        for m in self._sums.missing(owned):
            leaf = self._sums.buffer()
            samples, proof = self._maker.fill(index, m, leaf[:body])
            write_lanes(leaf, samples, proof)
            self._sums.add_leaf(m, leaf)
        # Each time anew: survivors of a death must all take part, also those that have samples.
        self.lacks_samples = self._maker.gathers

    def roots(self, assignment: Assignment, worker: WorkerId) -> Sequence[FloatVector]:
        """Return the vectors of the maximal subtrees that ``worker`` owns, in leaf order."""
        return self._sums.take(_nodes_of(assignment, worker))

    def split(self, vector: FloatVector) -> Total:
        """Return the total that the sum over all microbatches encodes.

        Raises:
            RecoveryImpossible: the counts in it are not those of samples.
        """
        body = self._maker.size
        try:
            samples, proof = from_lanes(vector[body:])
        except LedgerUnreadable as error:
            raise RecoveryImpossible(
                "the sum over the workers holds no whole number of samples, so it was damaged on "
                "its way and nothing of this step was applied: the memory of this machine is at "
                "fault, or a Replica of the script that writes outside of its vector; run again: "
                "the run resumes from its last checkpoint"
            ) from error
        contribution = vector[:body]
        contribution.flags.writeable = False  # other workers are reading it too
        return Total(contribution, samples, proof)

    def forget(self) -> None:
        """Drop all leaves: the transaction is committed, or belongs to another state."""
        self._sums.clear()

    def give_back(self) -> None:
        """Drop all leaves and their memory: from now on this worker owns fewer, or others."""
        self.forget()
        self.vectors.give_back()


# Cached, because the nodes are the same for every step of a world.
@functools.lru_cache(maxsize=8)
def _nodes_of(assignment: Assignment, worker: WorkerId) -> tuple[Node, ...]:
    owned = assignment.owned_by(worker)
    return maximal_nodes(owned, assignment.microbatches) if owned else ()


class LeafMaker(Protocol):
    """Computes the leaves of one kind of transaction."""

    gathers: bool = False
    """Whether its samples have to be gathered: one worker reads them for all."""

    size: int
    """Floats of the replica's part of a leaf."""

    def fill(self, index: int, m: int, out: FloatVector) -> tuple[int, int]:
        """Write leaf ``m`` of transaction ``index``; return its samples and their fingerprint."""

    def gather(self, cursor: Cursor, leaves: Collection[int], communicator: Communicator) -> None:
        """Get the samples of the transaction at ``cursor``; all workers call this together.

        ``leaves`` are those that this worker owns; of a validation those that it fills next.

        Raises:
            WorldBroken: a member died.
        """
        return


class TrainingLeaves(LeafMaker):
    """One microbatch of the step's batch is one leaf."""

    def __init__(
        self, replica: Replica, data: Data, order: SampleOrder, notes: WorkerStatus, begin: int = 0
    ) -> None:
        self._replica = replica
        self._data = data
        self._order = order
        self._notes = notes
        self._begin = begin
        self._fingerprints = FingerprintTable(order.samples)
        self.size = replica.shape.total

    def fill(self, index: int, m: int, out: FloatVector) -> tuple[int, int]:
        """Compute the gradients of microbatch ``m`` of update ``index``."""
        mine = index - self._begin
        ids = self._order.microbatch(mine, m)
        if not len(ids):
            out.fill(0.0)
            return 0, 0
        self._notes.begin_work(index + 1, m, ids.tobytes(), is_validation=False)
        self._notes.enter(Activity.READ)
        seed = self._order.microbatch_seed(mine, m)
        part = read_microbatch(self._data, ids, seed, self._order.batch_size(mine))
        self._notes.enter(Activity.COMPUTE)
        self._replica.contribute(part, out)
        self._notes.end_work()
        return len(ids), self._fingerprints.fingerprint(ids)


class ValidationLeaves(LeafMaker):
    """Leaf m adds up the m-th microbatch of every batch of the validation data.

    The sums of batches stay apart if the replica must settle each (`replica.EpochSums`).
    """

    def __init__(
        self, replica: Replica, data: Data, order: SampleOrder, notes: WorkerStatus
    ) -> None:
        self._replica = replica
        self._data = data
        self._order = order
        self._notes = notes
        self._fingerprints = FingerprintTable(order.samples)
        self._layout = PassLayout(replica, replica.shape.metrics, order.steps_per_epoch)
        self.size = self._layout.size
        self._one = np.empty(replica.shape.metrics, np.float32)

    def fill(self, index: int, m: int, out: FloatVector) -> tuple[int, int]:
        """Evaluate the m-th microbatch of every batch after update ``index``."""
        out.fill(0.0)
        samples, proof = 0, 0
        for batch in range(self._order.steps_per_epoch):
            ids = self._order.microbatch(batch, m)
            if not len(ids):
                continue
            self._notes.begin_work(index, m, ids.tobytes(), is_validation=True)
            self._notes.enter(Activity.READ)
            part = read_microbatch(self._data, ids, 0, self._order.batch_size(batch))
            self._notes.enter(Activity.COMPUTE)
            self._replica.evaluate(part, self._one)
            self._notes.end_work()
            self._layout.add(out, batch, self._one, len(ids))
            samples += len(ids)
            proof += self._fingerprints.fingerprint(ids)
        return samples, proof % 2**64


class BatchLeaves(LeafMaker):
    """One part of the step's batch is one leaf."""

    gathers = True

    def __init__(
        self,
        replica: Replica,
        feed: Feed,
        order: BatchOrder,
        work_plan: WorkPlan,
        notes: WorkerStatus,
    ) -> None:
        self._replica = replica
        self._feed = feed
        self._order = order
        self._work_plan = work_plan
        self._notes = notes
        self._batch: WholeBatch | OwnRows | None = None
        self._first = 0
        self.size = replica.shape.total

    def gather(self, cursor: Cursor, leaves: Collection[int], communicator: Communicator) -> None:
        """Get the batch of the update at ``cursor``."""
        plan = self._work_plan
        self._first = 0 if plan.is_epoch_start(cursor) else cursor.ledger.samples
        share = BatchShare(frozenset(leaves), self._order.bounds)
        step = cursor.step - plan.begin
        self._batch = self._feed.train_batch(step, communicator, self._notes.needing_no_peer, share)

    def fill(self, index: int, m: int, out: FloatVector) -> tuple[int, int]:
        """Compute the gradients of part ``m`` of the batch of update ``index``."""
        batch, order = self._batch, self._order
        assert batch is not None, "a batch is gathered before its leaves are computed"
        start, stop = order.bounds(batch.samples, m)
        if start == stop:
            out.fill(0.0)
            return 0, 0
        places = _places(self._first, start, stop)
        seed = order.microbatch_seed(index - self._work_plan.begin, m)
        self._notes.begin_work(index + 1, m, places.tobytes(), is_validation=False)
        self._replica.contribute(part_of(self._feed, batch, (start, stop), seed), out)
        self._notes.end_work()
        return stop - start, fingerprint_of_run(self._first + start, self._first + stop)


class BatchValidationLeaves(LeafMaker):
    """Leaf m adds up the m-th part of every batch; it is computed while they are gathered."""

    gathers = True

    def __init__(
        self, replica: Replica, feed: Feed, order: BatchOrder, notes: WorkerStatus
    ) -> None:
        self._replica = replica
        self._feed = feed
        self._order = order
        self._notes = notes
        self._leaves: dict[int, _Leaf] = {}
        self._layout = PassLayout(replica, replica.shape.metrics, feed.steps)
        self.size = self._layout.size
        self._one = np.empty(replica.shape.metrics, np.float32)

    def gather(self, cursor: Cursor, leaves: Collection[int], communicator: Communicator) -> None:
        """Evaluate these parts of every batch of the validation after ``cursor``."""
        self._leaves = {m: _Leaf(np.zeros(self.size, np.float32)) for m in leaves}
        first, share = 0, BatchShare(frozenset(leaves), self._order.bounds)
        for step in range(self._feed.steps):
            number = cursor.evaluations, step
            self._notes.enter(Activity.READ)
            batch = self._feed.validation_batch(
                number, communicator, self._notes.needing_no_peer, share
            )
            with self._notes.needing_no_peer():
                for m, leaf in self._leaves.items():
                    self._add(leaf, batch, (cursor.step, m, step, first))
            first += batch.samples

    def fill(self, index: int, m: int, out: FloatVector) -> tuple[int, int]:
        """Return leaf ``m``, which was computed already."""
        del index
        leaf = self._leaves.pop(m)
        out[:] = leaf.sums
        return leaf.samples, leaf.proof % 2**64

    def _add(self, leaf: _Leaf, batch: WholeBatch | OwnRows, at: tuple[int, int, int, int]) -> None:
        step, m, number, first = at
        start, stop = self._order.bounds(batch.samples, m)
        if start == stop:
            return
        places = _places(first, start, stop)
        self._notes.begin_work(step, m, places.tobytes(), is_validation=True)
        self._notes.enter(Activity.COMPUTE)
        self._replica.evaluate(part_of(self._feed, batch, (start, stop), 0), self._one)
        self._notes.end_work()
        self._layout.add(leaf.sums, number, self._one, stop - start)
        leaf.samples += stop - start
        leaf.proof += fingerprint_of_run(first + start, first + stop)


@dataclass(slots=True)
class _Leaf:
    """The sums of one part over the batches so far, and their proof."""

    sums: FloatVector
    samples: int = 0
    proof: int = 0


def part_of(
    feed: Feed, batch: WholeBatch | OwnRows, rows: tuple[int, int], seed: int
) -> Microbatch:
    """Return some samples of a batch as a microbatch."""
    x, y, weights = feed.parts(batch, *rows)
    return Microbatch(x, y, seed, weights, batch.samples)


def _places(first: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    return np.arange(first + start, first + stop, dtype=np.int64)
