"""The forecasts of one set of workers, and which of them has grown.

Before a launch trains, and after a death, memory changes for good reasons.  So a set of workers
is left alone until all of it has trained for some steps, and each other set begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase
from holdfast.runtime.system.processes import resident_bytes
from holdfast.runtime.watch.memory_forecast import Forecast
from holdfast.runtime.watch.usage import Resource, Usage

_STEPS_TO_SETTLE = 2
"""The first steps of a launch take memory that stays."""

_WORTH_NAMING = 0.05
"""A worker is named if it has grown by that part of the memory of all workers."""

_BEFORE_TRAINING = (Phase.STARTING, Phase.JOINING, Phase.RESTORING, Phase.COMPILING)


class Watched(Protocol):
    """What is looked at of a worker."""

    @property
    def worker(self) -> int:
        """Its id."""

    @property
    def pid(self) -> int | None:
        """Its process, if it has one."""

    @property
    def page(self) -> HeartbeatPage:
        """Its step and phase."""


class Trends:
    """The forecasts of one set of workers, from its first steps on."""

    def __init__(self) -> None:
        self._pids: frozenset[int | None] = frozenset()
        self._first_step: int | None = None
        self._forecasts: dict[tuple[Resource, str], Forecast] = {}
        self._resident_before: dict[int, int] = {}

    def is_settled(self, living: Sequence[Watched]) -> bool:
        """Return whether all train for some steps; another set of workers begins anew."""
        pids = frozenset(watched.pid for watched in living)
        if pids != self._pids:
            self._pids, self._first_step = pids, None
            self._forecasts.clear()
            self._resident_before.clear()
        if any(watched.page.phase in _BEFORE_TRAINING for watched in living):
            return False
        step = min(watched.page.step for watched in living)
        if self._first_step is None:
            self._first_step = step
        is_settled = step >= self._first_step + _STEPS_TO_SETTLE
        if is_settled and not self._resident_before:
            self._resident_before = _resident(living)
        return is_settled

    def observe(self, usages: Iterable[Usage], now: float) -> list[tuple[Usage, Forecast]]:
        """Return the uses of which a growth is to be told."""
        told = []
        for usage in usages:
            key = (usage.resource, usage.place)
            forecast = self._forecasts.get(key, Forecast()).observe(usage.used, usage.limit, now)
            self._forecasts[key] = forecast
            if forecast.is_news:
                told.append((usage, forecast))
        return told

    def largest(self, living: Sequence[Watched]) -> tuple[int, int] | None:
        """Return the worker that has grown most since its first steps, and its resident bytes."""
        resident = _resident(living)
        grown = {
            worker: size - self._resident_before.get(worker, size)
            for worker, size in resident.items()
        }
        worker = max(grown, key=grown.__getitem__, default=None)
        if worker is None or grown[worker] < _WORTH_NAMING * sum(resident.values()):
            return None
        return worker, resident[worker]


def _resident(living: Sequence[Watched]) -> dict[int, int]:
    sizes = {w.worker: resident_bytes(w.pid) for w in living if w.pid is not None}
    return {worker: size for worker, size in sizes.items() if size is not None}
