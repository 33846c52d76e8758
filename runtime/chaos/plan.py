"""Plans of strikes that follow from a seed; pure.

The same seed, kinds and figures give the same plan on every machine and in every release of
Python: all draws come from splitmix64.  There are two sorts:

* a *mean time between failures*: strikes without end, whose gaps are exponential, as those
  of machines that fail independently of their age;
* a *count*: so many strikes, each at a step or at an event of the run.  A run is then
  struck in all its phases, however fast the machine is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import count as numbers_from

from holdfast.recovery.splitmix import WORD, chain
from holdfast.runtime.chaos.strike import (
    DEFAULT_FOR_S,
    LASTING,
    AtStep,
    AtTime,
    Blow,
    Moment,
    OnEvent,
    Strike,
    Target,
)

_BLOW, _MOMENT, _INDEX, _WHEN, _COUNT = range(5)
_INDICES = 64
"""Among so many processes of one kind each has the same chance, within 1 in 64."""
_SEVERAL = (Target.WORKER, Target.GUARD)
_EVENTS = ("launch", "world", "checkpoint", "failure", "completed")
"""Starting, training again, in a save, in a repair, ending."""
_AT_EVENT = 0.4
"""The part of a count's strikes that is bound to an event."""


def strikes_by_mtbf(seed: int, mtbf_s: float, blows: Sequence[Blow]) -> Iterator[Strike]:
    """Yield strikes for ever, with exponential gaps of ``mtbf_s`` on average."""
    seconds = 0.0
    for number in numbers_from(0):
        seconds += -mtbf_s * math.log(1.0 - _draw(seed, number, _WHEN))
        yield _strike(seed, number, blows, AtTime(round(seconds, 2)))


def strikes_by_count(
    seed: int, count: int, steps: int, blows: Sequence[Blow]
) -> tuple[Strike, ...]:
    """Return ``count`` strikes on a run of ``steps`` steps."""
    return tuple(
        _strike(seed, number, blows, _moment(seed, number, steps)) for number in range(count)
    )


def pick(seed: int, purpose: int, least: int, most: int) -> int:
    """Return a number from ``least`` to ``most`` that follows from ``seed``."""
    return least + int(_draw(seed, purpose, _COUNT) * (most - least + 1))


def _strike(seed: int, number: int, blows: Sequence[Blow], moment: Moment) -> Strike:
    blow = blows[int(_draw(seed, number, _BLOW) * len(blows))]
    return Strike(
        blow,
        moment,
        index=int(_draw(seed, number, _INDEX) * _INDICES) if blow.target in _SEVERAL else 0,
        for_s=DEFAULT_FOR_S if blow.kind in LASTING else None,
    )


def _moment(seed: int, number: int, steps: int) -> Moment:
    if _draw(seed, number, _MOMENT) < _AT_EVENT:
        event = _EVENTS[int(_draw(seed, number, _WHEN) * len(_EVENTS))]
        return OnEvent(event, 1 + int(_draw(seed, number, _COUNT) * 2))
    return AtStep(int(_draw(seed, number, _WHEN) * (steps + 1)))


def _draw(seed: int, number: int, purpose: int) -> float:
    """Return a number in [0, 1) that follows from its arguments."""
    return (chain(seed, number, purpose) >> 11) / float(WORD >> 11)
