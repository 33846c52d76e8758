"""What a step should take on machines that are not here: a model fitted to the steps measured here.

A step is computing, then what the network and the processors need for the bytes that travel::

    crowding * computing + moved * (8 / rate + cost),  moved = 2 (w - 1) / w * vector

Each host sends and receives ``moved`` bytes of gradients, with holdfast and with Horovod.
``computing`` is the measured step of one worker alone.  Two figures of each way are fitted: the
``cost`` of a byte beside the link, and for each number of workers the ``crowding``, which is how
much slower all compute when they share this machine.  On machines of their own that is 1.  A vote
takes tens of microseconds (``network.py``) and is left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

HEADERS = 1500 / 1448
"""Bytes on the link for a byte of a message, with TCP's options."""
_LEAST, _MOST = 1e-11, 1e-7
"""Seconds a byte costs beside the link: from nothing to 10 MB/s."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A job: workers, each on a host of its own, the batch of one, and the links between them."""

    workers: int
    batch: int
    gbit: float


@dataclass(frozen=True, slots=True)
class Fit:
    """What was fitted for one way, and how far its steps are from those measured."""

    computing: Mapping[int, float]
    vector: int
    cost: float
    crowding: Mapping[int, float]
    errors: Mapping[Cell, float]

    def step(self, cell: Cell) -> float:
        """Return the seconds of a step with each worker on a machine of its own."""
        return _step(self, cell, 1.0)

    def error_text(self) -> str:
        """Return the errors as percentages: the usual one and the greatest."""
        sizes = [abs(error) for error in self.errors.values()]
        return f"{statistics.median(sizes):.0%} in the median, {max(sizes):.0%} at most"


def fit(measured: Mapping[Cell, float], vector: int) -> Fit:
    """Fit the model of one way to the seconds of its measured steps.

    Cells of one worker give the computing.  ``vector`` is the bytes of the gradients.
    """
    computing = {cell.batch: seconds for cell, seconds in measured.items() if cell.workers == 1}
    others = {cell: seconds for cell, seconds in measured.items() if cell.workers > 1}

    def at(cost: float) -> Fit:
        plain = Fit(computing, vector, cost, {}, {})
        crowding = {
            workers: _crowding(plain, {c: s for c, s in others.items() if c.workers == workers})
            for workers in sorted({cell.workers for cell in others})
        }
        errors = {
            cell: _step(plain, cell, crowding[cell.workers]) / seconds - 1
            for cell, seconds in others.items()
        }
        return Fit(computing, vector, cost, crowding, errors)

    def badness(logarithm: float) -> float:
        return sum(error**2 for error in at(math.exp(logarithm)).errors.values())

    return at(math.exp(_lowest(badness, math.log(_LEAST), math.log(_MOST))))


def _crowding(plain: Fit, measured: Mapping[Cell, float]) -> float:
    """Return the crowding that brings the steps of one number of workers nearest."""

    def badness(crowding: float) -> float:
        return sum(
            (_step(plain, cell, crowding) / seconds - 1) ** 2 for cell, seconds in measured.items()
        )

    workers = max(cell.workers for cell in measured)
    return _lowest(badness, 0.5, 4.0 * workers)


def _step(terms: Fit, cell: Cell, crowding: float) -> float:
    """Return the mean seconds of a worker's step."""
    computing = crowding * terms.computing[cell.batch]
    if cell.workers == 1:
        return computing
    on_link = 8 * HEADERS / (cell.gbit * 1e9)
    moved = 2 * (cell.workers - 1) / cell.workers * terms.vector
    return computing + moved * (on_link + terms.cost)


def _lowest(function: Callable[[float], float], low: float, high: float) -> float:
    """Return where a function is lowest: the best of a row of places, then ever finer about it."""
    places: Sequence[float] = ()
    while high - low > 1e-4:
        places = [low + (high - low) * n / 16 for n in range(17)]
        best = min(range(17), key=lambda n: function(places[n]))
        low, high = places[max(best - 1, 0)], places[min(best + 1, 16)]
    return (low + high) / 2
