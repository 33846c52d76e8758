"""The exact sum of small vectors: every rank swaps whole vectors, node by node.

Who swaps what is decided in `recovery.climb`.  It takes fewer messages than any
other way, and with more ranks than cores a message costs more than the copying
of a small vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.recovery.climb import Stage, plan_climb
from holdfast.recovery.reduction import ReductionPlan, slice_bounds
from holdfast.runtime.communicator import Communicator
from holdfast.runtime.finite import is_finite
from holdfast.runtime.replica import FloatVector

_TAG = 3


@dataclass(frozen=True, slots=True)
class _Step:
    """A stage with its buffers; none is written twice while messages are in the air."""

    sends: tuple[tuple[int, int], ...]
    """Number of a value, and the peer that lacks it."""
    arrival: int | None
    """Number of the value that this rank lacks."""
    received: FloatVector
    addition: tuple[int, int] | None
    total: FloatVector | None
    """Where the sum goes; None is the result of the whole exchange."""


class Climb:
    """Sums vectors of one size by one plan, in as many steps as the tree has levels."""

    def __init__(self, communicator: Communicator, plan: ReductionPlan, size: int) -> None:
        rank = communicator.rank
        self._communicator = communicator
        self._slice = slice(*slice_bounds(size, communicator.size)[rank])
        self._mine = [index for index, root in enumerate(plan.roots) if root.rank == rank]
        self._unknown = [np.empty(0, np.float32) for _ in plan.roots]
        stages = plan_climb(plan, rank, communicator.size)
        additions = [turn for turn, stage in enumerate(stages) if stage.addition]
        self._steps = [
            _with_buffers(stage, size, is_last=additions[-1:] == [turn])
            for turn, stage in enumerate(stages)
        ]
        self._arrivals = [
            (step.received, stage.arrival.peer)
            for step, stage in zip(self._steps, stages, strict=True)
            if stage.arrival is not None
        ]

    def run(
        self, roots: Sequence[FloatVector], posted: Callable[[], None], result: FloatVector
    ) -> bool:
        """Fill ``result`` with the sum; return whether this rank's slice of it is finite.

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        values = self._unknown.copy()
        for index, root in zip(self._mine, roots, strict=True):
            values[index] = root
        with self._communicator.flight() as flight:
            tickets = [flight.receive(vector, peer, _TAG) for vector, peer in self._arrivals]
            awaited = iter(tickets)
            for turn, step in enumerate(self._steps):
                for value, peer in step.sends:
                    flight.send(values[value], peer, _TAG)
                if turn == 0:
                    posted()
                if step.arrival is not None:
                    flight.wait(next(awaited))
                    values[step.arrival] = step.received
                if step.addition is not None:
                    left, right = step.addition
                    target = result if step.total is None else step.total
                    np.add(values[left], values[right], target)
                    values[left] = target
        if values[0] is not result:
            result[:] = values[0]
        return is_finite(result[self._slice])


def _with_buffers(stage: Stage, size: int, *, is_last: bool) -> _Step:
    return _Step(
        tuple((message.value, message.peer) for message in stage.sends),
        stage.arrival.value if stage.arrival else None,
        np.empty(size if stage.arrival else 0, np.float32),
        stage.addition,
        None if is_last else np.empty(size if stage.addition else 0, np.float32),
    )
