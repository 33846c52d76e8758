"""Makes a replica ready for every shape of microbatch, outside of any recovery.

A microbatch that a worker has not owned yet may have another shape, and the first one of
a shape costs a trace.  A worker that adopts one in a recovery should not pay then.  So all
shapes of the job are prepared after the first commits, one shape at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from typing import Protocol, runtime_checkable

from holdfast.recovery.order import BatchOrder, SampleOrder, SequentialOrder
from holdfast.runtime.model.data import read_microbatch
from holdfast.runtime.model.replica import Microbatch, Replica
from holdfast.runtime.pipelines.feed import Feed
from holdfast.runtime.training.batch_contributors import part_of
from holdfast.runtime.training.training_job import TrainingJob


@runtime_checkable
class Preparable(Protocol):
    """A replica that needs preparation for each shape of microbatch."""

    def prepare(self, batch: Microbatch) -> None:
        """Become ready for microbatches of this shape; changes no state."""


class Preparation:
    """The shapes for which a replica must still be prepared."""

    def __init__(self, replica: Replica, job: TrainingJob) -> None:
        self._replica = replica if isinstance(replica, Preparable) else None
        self._samples = _one_of_each_size(job)

    def prepare_next(self) -> None:
        """Prepare the replica for one more shape, if one is left."""
        if self._replica is None:
            return
        for batch in self._samples:
            self._replica.prepare(batch)
            return


def _one_of_each_size(job: TrainingJob) -> Iterator[Microbatch]:
    """Yield one microbatch of every size that the job has."""
    known: set[tuple[Hashable, int]] = set()
    for key, read in _every_size(job):
        if key[1] and key not in known:
            known.add(key)
            yield read()


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
            elif data is not None and isinstance(order, (SampleOrder, SequentialOrder)):
                assert not isinstance(data, Feed)
                for index in (0, order.steps_per_epoch - 1):
                    ids = order.microbatch(index, m)
                    yield (kind, len(ids)), partial(read_microbatch, data, ids, 0)
