"""From the metrics of batches to the sums of an epoch, or of a pass over validation data.

Most metrics are sums over samples, and are added as they come.  A replica may have others:
what a batch adds to them is known only when the whole batch is summed.  So a pass over
validation data then keeps the sums of its batches apart, each with its samples.

Most metrics begin anew with each pass.  Those that no reset empties go on: their sums are carried
from one pass to the next, and are a part of the cursor.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from holdfast.recovery.cursor import Cursor
from holdfast.recovery.partial import FloatVector

Sums = npt.NDArray[np.float64]


@runtime_checkable
class Settling(Protocol):
    """A replica with metrics of a batch that are quotients of sums, such as a masked loss."""

    @property
    def is_additive(self) -> bool:
        """Whether all metrics are sums over samples, so that nothing needs to be settled."""

    def settle(self, sums: Sums, samples: int) -> Sums:
        """Return what the metrics of one whole batch add to the sums of an epoch.

        ``sums`` are those of all microbatches of the batch, which has ``samples`` samples.
        """


@runtime_checkable
class Carrying(Protocol):
    """A replica that may have metrics which no reset empties."""

    def first_sums(self) -> Sums:
        """Return the sums with which a training begins: what such metrics hold by now."""

    def carried(self, sums: Sums) -> Sums:
        """Return the sums with which the next pass begins, from those of an epoch."""

    def with_pass(self, sums: Sums, passed: Sums) -> Sums:
        """Return the sums of an epoch, with those of a pass over validation data to be carried."""


def first_cursor(replica: object, metrics: int, step: int) -> Cursor:
    """Return the cursor of a training that begins at ``step``."""
    cursor = Cursor.start(metrics, step)
    return replace(cursor, sums=replica.first_sums()) if isinstance(replica, Carrying) else cursor


def next_sums(replica: object, sums: Sums) -> Sums:
    """Return what a pass begins with after an epoch with these ``sums``."""
    return replica.carried(sums) if isinstance(replica, Carrying) else np.zeros_like(sums)


def after_pass(replica: object, sums: Sums, passed: Sums) -> Sums:
    """Return the sums of an epoch, after a pass over validation data has added ``passed``."""
    return replica.with_pass(sums, passed) if isinstance(replica, Carrying) else sums


def step_sums(replica: object, metrics: FloatVector, samples: int) -> Sums:
    """Return what the metrics of one step's total add to the sums of its epoch."""
    sums = metrics.astype(np.float64)
    return replica.settle(sums, samples) if isinstance(replica, Settling) else sums


class PassLayout:
    """Where the sums of the batches of a pass over validation data stand.

    ``metrics`` is the number of floats of the replica's metrics.
    """

    def __init__(self, replica: object, metrics: int, batches: int) -> None:
        self._is_apart = _settles(replica)
        self._batches = batches if self._is_apart else 1
        self._metrics = metrics
        self.size = self._batches * (metrics + self._is_apart)
        """Floats of a leaf."""

    def add(self, out: FloatVector, batch: int, one: FloatVector, samples: int) -> None:
        """Add the metrics of some samples of batch number ``batch`` to a leaf."""
        block = out.reshape(self._batches, -1)[batch % self._batches]
        block[: self._metrics] += one
        block[self._metrics :] += samples


def pass_sums(replica: object, metrics: int, contribution: FloatVector) -> Sums:
    """Return the sums of a pass over validation data, from its total."""
    sums: Sums = contribution.astype(np.float64)
    if not _settles(replica):
        return sums
    assert isinstance(replica, Settling)
    batches = sums.reshape(-1, metrics + 1)
    settled = [replica.settle(batch[:-1], int(batch[-1])) for batch in batches if batch[-1]]
    return sum(settled, np.zeros(metrics))


def _settles(replica: object) -> bool:
    return isinstance(replica, Settling) and not replica.is_additive
