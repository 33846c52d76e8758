"""Makes a replica ready for every shape of microbatch, outside of any recovery.

A microbatch that a worker has not owned yet may have another shape, and the first one of
a shape costs a trace.  A worker that adopts one in a recovery should not pay then.  So all
shapes of the job are prepared after the first commits, one shape at a time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Protocol, runtime_checkable

from holdfast.recovery.order import SampleOrder, SequentialOrder
from holdfast.runtime.model.data import Data, read_microbatch
from holdfast.runtime.model.replica import Microbatch, Replica
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
    orders: list[tuple[Data, SampleOrder | SequentialOrder]] = [(job.data, job.order)]
    if job.validation is not None and job.validation_order is not None:
        orders.append((job.validation, job.validation_order))
    known: set[int] = {0}
    for data, order in orders:
        for index, m in itertools.product((0, order.steps_per_epoch - 1), range(job.microbatches)):
            ids = order.microbatch(index, m)
            if len(ids) not in known:
                known.add(len(ids))
                yield read_microbatch(data, ids, seed=0)
