"""The graphs of a model, one for each shape of microbatch: how many are kept, and what they cost.

Shapes are fixed in a graph, because TensorFlow's bits may depend on them.  So sequences that
are padded to the longest of their batch trace the model again and again.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable
from typing import Any

MOST_KEPT = 256
"""Each graph takes some megabytes."""

TOLD_AT = 32
"""Shapes after which a user should hear of it; ordinary jobs have two to eight."""


class GraphCache:
    """Graphs by the shape that they are for; the oldest one goes when there are too many.

    A graph that comes again is traced again, and is the same.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._graphs: dict[Hashable, Any] = {}
        self._clock = clock
        self._traced = 0
        self._seconds = 0.0

    def __len__(self) -> int:
        return len(self._graphs)

    def get(self, key: Hashable, trace: Callable[[], Any]) -> Any:
        """Return the graph for ``key``; ``trace`` makes it if it is not there."""
        graph = self._graphs.get(key)
        if graph is None:
            graph = self._traced_graph(trace)
            self._graphs[key] = graph
            if len(self._graphs) > MOST_KEPT:
                del self._graphs[next(iter(self._graphs))]
        return graph

    def _traced_graph(self, trace: Callable[[], Any]) -> Any:
        begin = self._clock()
        graph = trace()
        self._seconds += self._clock() - begin
        self._traced += 1
        if self._traced == TOLD_AT:
            warnings.warn(
                f"the model was traced for {TOLD_AT} shapes of microbatches so far, which took "
                f"{self._seconds:.0f} s: pad sequences to a few lengths, such as multiples of 32",
                stacklevel=2,
            )
        return graph
