"""holdfast's own figures of an epoch, which stand in TensorBoard beside those of the script.

They answer two questions about a bend in a curve: has something happened to the run in this
epoch, and was it slow?  A worker knows them itself, from its world, its launch and the sums of its
`timeline`.  So they need neither message nor vote.  They are times, which differ from run to run:
no state holds them, and no worker compares them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from holdfast.recovery.schedule import FailureHistory
from holdfast.recovery.world import World
from holdfast.runtime.system.timeline import WAITING, Activity
from holdfast.runtime.system.worker_status import WorkerStatus

_SHARES = {
    "share_waiting": WAITING,
    "share_starting": {Activity.JOIN, Activity.RESTORE, Activity.COMPILE, Activity.REPAIR},
    "share_saving": {Activity.COPY},
}


class _Moment(NamedTuple):
    """When an epoch, or a launch within it, has begun for this worker."""

    now: float
    samples: int
    """Samples of the epoch that an earlier launch has trained."""
    spent_ns: tuple[int, ...]


class RunFigures:
    """What one worker can tell of the run at the end of each epoch.

    Args:
        page: has the sums of what the worker spends its time on.
        history: that of the run before this launch.
        world: returns the world as this worker knows it.
    """

    def __init__(
        self,
        page: WorkerStatus,
        history: FailureHistory,
        world: Callable[[], World],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._page = page
        self._relaunches = history.failures
        self._world = world
        self._clock = clock
        self._begun: _Moment | None = None

    def work(self, samples: int) -> None:
        """Hear that work begins; the first of a launch finds ``samples`` of its epoch trained."""
        if self._begun is None:
            self._begun = self._moment(samples)

    def end_epoch(self, samples: int) -> dict[str, float]:
        """Return the figures of the epoch that has ended, which has so many samples.

        Its speed is known if this launch has trained a part of it.
        """
        world = self._world()
        found: dict[str, float] = {
            "workers": world.size,
            "generation": world.generation,
            "relaunches": self._relaunches,
        }
        begun, self._begun = self._begun, self._moment(0)
        if begun is None or samples <= begun.samples:
            return found
        seconds = self._begun.now - begun.now
        found["samples_per_second"] = (samples - begun.samples) / seconds
        for name, activities in _SHARES.items():
            spent = sum(self._begun.spent_ns[each] - begun.spent_ns[each] for each in activities)
            found[name] = spent / 1e9 / seconds
        return found

    def _moment(self, samples: int) -> _Moment:
        return _Moment(self._clock(), samples, self._page.spent_ns)
