"""A replica is made ready for each shape of microbatch once, one shape at a time."""

from __future__ import annotations

import numpy as np
import pytest
from configs import worker_config
from simulation import FEATURES, Drawn, TinyReplica, data

from holdfast.runtime.data.feed import Feed
from holdfast.runtime.data.samples import ArrayData, Data, SampleIds, Samples
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.run.numerics import Numerics
from holdfast.runtime.training.loop import preparing
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest, describe_job


class Counting(ArrayData):
    """Samples that count how often they are read."""

    reads = 0

    def read(self, ids: SampleIds) -> Samples:
        self.reads += 1
        return super().read(ids)


class Preparing(TinyReplica):
    """Takes down the sizes that it is prepared for."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: list[int] = []

    def prepare(self, batch: Microbatch) -> None:
        self.sizes.append(batch.samples)


def job(
    samples: Data | Feed, validation: Data | None = None, batch: int | None = None
) -> TrainingJob:
    """Return a job of 9 samples an update, in 4 microbatches."""
    request = TrainingRequest(samples, validation, 9, 2, validation_batch=batch)
    return describe_job(request, worker_config(microbatches=4), Numerics.here(threads=1))


@pytest.mark.parametrize(
    ("validation", "batch", "sizes"),
    [
        (None, None, [3, 2, 1]),  # of batches of 9 samples, and 5 at an epoch's end
        (data(11), 4, [3, 2, 1]),
        (data(40), 40, [3, 2, 1, 10]),
    ],
    ids=["training", "no other sizes", "validation"],
)
def test_each_size_is_prepared_once(
    validation: Data | None, batch: int | None, sizes: list[int]
) -> None:
    replica = Preparing()
    list(preparing(replica, job(data(23), validation, batch), lambda _: None))

    assert replica.sizes == sizes


def test_one_shape_is_prepared_at_a_time_and_only_its_samples_are_read() -> None:
    replica = Preparing()
    samples = Counting(np.ones((23, FEATURES), np.float32), np.ones(23, np.float32))
    next(preparing(replica, job(samples), lambda _: None))

    assert replica.sizes == [3]
    assert samples.reads == 1


def test_pipeline_is_prepared_for_by_its_first_batch() -> None:
    replica = Preparing()
    list(preparing(replica, job(Feed(Drawn((9, 30)), 2)), lambda _: None))

    assert replica.sizes == [3, 2]
