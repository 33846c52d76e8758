"""The leaves of a job whose batches come from a pipeline: one worker reads, all compute.

A sample has no number of its own.  Its place in the epoch, or in the validation, is its
number for the ledger.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from holdfast.recovery.cursor import Cursor
from holdfast.recovery.ledger import fingerprint_of_run
from holdfast.recovery.order import BatchOrder
from holdfast.recovery.partial import FloatVector
from holdfast.recovery.work_plan import WorkPlan
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.loss.settling import PassLayout
from holdfast.runtime.model.replica import Microbatch, Replica
from holdfast.runtime.pipelines.batch import Batch
from holdfast.runtime.pipelines.feed import Feed
from holdfast.runtime.training.transaction import WorkNotes


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """The constants of a contributor: how batches are cut, and where epochs begin."""

    order: BatchOrder
    work_plan: WorkPlan


class BatchContributor:
    """One part of the step's batch is one leaf."""

    def __init__(self, replica: Replica, feed: Feed, terms: BatchTerms, notes: WorkNotes) -> None:
        self._replica = replica
        self._feed = feed
        self._terms = terms
        self._notes = notes
        self._batch: Batch | None = None
        self._first = 0
        self.size = replica.shape.total

    def gather(self, cursor: Cursor, missing: Collection[int], communicator: Communicator) -> None:
        """Get the batch of the update at ``cursor``."""
        del missing
        plan = self._terms.work_plan
        self._first = 0 if plan.is_epoch_start(cursor) else cursor.ledger.samples
        self._batch = self._feed.train_batch(cursor.step - plan.begin, communicator, self._notes)

    def fill(self, index: int, m: int, out: FloatVector) -> tuple[int, int]:
        """Compute the gradients of part ``m`` of the batch of update ``index``."""
        batch, order = self._batch, self._terms.order
        assert batch is not None, "a batch is gathered before its leaves are computed"
        start, stop = order.bounds(batch.samples, m)
        if start == stop:
            out.fill(0.0)
            return 0, 0
        places = _places(self._first, start, stop)
        seed = order.microbatch_seed(index - self._terms.work_plan.begin, m)
        self._notes.begin_work(index + 1, m, places.tobytes(), is_validation=False)
        self._replica.contribute(part_of(self._feed, batch, (start, stop), seed), out)
        self._notes.end_work()
        return stop - start, fingerprint_of_run(self._first + start, self._first + stop)


class BatchValidationContributor:
    """Leaf m adds up the m-th part of every batch; it is computed while they are gathered."""

    def __init__(self, replica: Replica, feed: Feed, terms: BatchTerms, notes: WorkNotes) -> None:
        self._replica = replica
        self._feed = feed
        self._terms = terms
        self._notes = notes
        self._leaves: dict[int, _Leaf] = {}
        self._layout = PassLayout(replica, replica.shape.metrics, feed.steps)
        self.size = self._layout.size
        self._one = np.empty(replica.shape.metrics, np.float32)

    def gather(self, cursor: Cursor, missing: Collection[int], communicator: Communicator) -> None:
        """Evaluate the missing parts of every batch of the validation after ``cursor``."""
        self._leaves = {m: _Leaf(np.zeros(self.size, np.float32)) for m in missing}
        first = 0
        for step in range(self._feed.steps):
            number = cursor.evaluations, step
            batch = self._feed.validation_batch(number, communicator, self._notes)
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

    def _add(self, leaf: _Leaf, batch: Batch, at: tuple[int, int, int, int]) -> None:
        step, m, number, first = at
        start, stop = self._terms.order.bounds(batch.samples, m)
        if start == stop:
            return
        places = _places(first, start, stop)
        self._notes.begin_work(step, m, places.tobytes(), is_validation=True)
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


def part_of(feed: Feed, batch: Batch, rows: tuple[int, int], seed: int) -> Microbatch:
    """Return some samples of a batch as a microbatch."""
    x, y, weights = feed.parts(batch, *rows)
    return Microbatch(x, y, seed, weights, batch.samples)


def _places(first: int, start: int, stop: int) -> npt.NDArray[np.int64]:
    return np.arange(first + start, first + stop, dtype=np.int64)
