"""The tree above the roots, added up bucket by bucket without changing any root."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.recovery.partial import FloatVector
from holdfast.recovery.reduction import ReductionPlan

BUCKET_FLOATS = 64 * 1024
"""256 KiB: two roots and their sum fit into a second-level cache of 1 MiB."""


class Fold:
    """Sums one bucket of all roots in the order of the tree."""

    def __init__(self, plan: ReductionPlan, floats: int) -> None:
        """Make buffers for buckets of up to ``floats``."""
        self._combines = plan.combines
        # Sums of nodes that begin at the first leaf build up in the result.  A sum that
        # waits for its left neighbour needs a buffer of its own.
        waiting = {left for left, _ in plan.combines if left}
        self._scratch = {left: np.empty(floats, np.float32) for left in waiting}

    def sum(self, rows: Sequence[FloatVector], result: FloatVector) -> None:
        """Write the sum of ``rows``, in the order of the plan, into ``result``."""
        if not self._combines:
            result[:] = rows[0]
            return
        values = list(rows)
        for left, right in self._combines:
            target = self._scratch[left][: len(result)] if left else result
            np.add(values[left], values[right], target)
            values[left] = target


def buckets(start: int, stop: int, floats: int) -> list[slice]:
    """Return the range ``start`` to ``stop`` of a vector, cut into buckets of ``floats``."""
    begins = range(start, stop, floats)
    return [slice(begin, min(begin + floats, stop)) for begin in begins]
