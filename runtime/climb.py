"""The exact sum of small vectors: every rank swaps whole vectors, node by node.

Who swaps what is decided in `recovery.climb`.  It takes fewer messages than any
other way, and with more ranks than cores a message costs more than the copying
of a small vector.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.recovery.climb import Message, Stage, plan_climb
from holdfast.recovery.reduction import ReductionPlan
from holdfast.runtime.communicator import Communicator
from holdfast.runtime.replica import FloatVector

_TAG = 3


@dataclass(frozen=True, slots=True)
class _Step:
    """A stage and its buffers; none of them is written twice while messages are in the air."""

    sends: tuple[Message, ...]
    arrival: Message | None
    received: FloatVector
    addition: tuple[int, int] | None
    total: FloatVector


class Climb:
    """Sums vectors of one size by one plan, with as many additions as the tree has levels."""

    def __init__(self, communicator: Communicator, plan: ReductionPlan, size: int) -> None:
        rank = communicator.rank
        self._communicator = communicator
        self._mine = [index for index, root in enumerate(plan.roots) if root.rank == rank]
        self._unknown = [np.empty(0, np.float32) for _ in plan.roots]
        stages = plan_climb(plan, rank, communicator.size)
        self._steps = [_with_buffers(stage, size) for stage in stages]
        self._last = max((turn for turn, s in enumerate(stages) if s.addition), default=-1)

    def run(
        self, roots: Sequence[FloatVector], posted: Callable[[], None], result: FloatVector
    ) -> None:
        """Fill ``result`` with the sum over all microbatches.

        Raises:
            WorldBroken: a member died; the roots are unchanged.
        """
        values = self._unknown.copy()
        for index, root in zip(self._mine, roots, strict=True):
            values[index] = root
        with self._communicator.flight() as flight:
            tickets = [
                flight.receive(step.received, step.arrival.peer, _TAG) if step.arrival else 0
                for step in self._steps
            ]
            for turn, step in enumerate(self._steps):
                for message in step.sends:
                    flight.send(values[message.value], message.peer, _TAG)
                if turn == 0:
                    posted()
                if step.arrival is not None:
                    flight.wait(tickets[turn])
                    values[step.arrival.value] = step.received
                if step.addition is not None:
                    left, right = step.addition
                    target = result if turn == self._last else step.total
                    np.add(values[left], values[right], target)
                    values[left] = target
        if values[0] is not result:
            result[:] = values[0]


def _with_buffers(stage: Stage, size: int) -> _Step:
    received = np.empty(size if stage.arrival else 0, np.float32)
    total = np.empty(size if stage.addition else 0, np.float32)
    return _Step(stage.sends, stage.arrival, received, stage.addition, total)
