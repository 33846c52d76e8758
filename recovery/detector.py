"""Which workers are alive or dead, and whether all stood still, judged by their heartbeats.

A worker counts; an observer looks at the counters now and then. A worker is silent
while two looks in a row see the same count. Silence beyond a limit makes it dead. A worker
that is found dead is fenced, and only then counts as a failure.

Three things make the verdicts safe:

* Only the observer's clock is used. Workers do not tell the time.
* The limit depends on the phase: a worker that starts may hold the interpreter's lock
  in one long call, while one that trains may not.
* An observer that was away (stopped, starved, on a suspended machine) must not accuse
  the workers that it failed to look at. So each look adds at most a quarter of the
  timeout to a silence, even if the last look was long ago. A worker is found dead only
  after four looks in a row that saw no change.

A pause of the whole job is nobody's fault: a batch system has suspended it, its machine was
suspended, its cgroup frozen.  An observer that was away sees only that time has passed.  So it
looks at the workers' counters: those that were awake meanwhile have counted on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from holdfast.recovery.world import WorkerId

LOOKS_PER_LIMIT = 4

_LEAST_S = 5.0
"""A shorter pause is not worth a word: a busy host may starve a job for seconds."""
_AWAKE = 0.25
"""A worker that has counted for this part of the time was awake."""


def counted_s(looked_at: float | None, now: float, most_s: float) -> float:
    """Return the seconds that a look at ``now`` adds: those since the last look, or ``most_s``.

    So an observer that was away counts hardly anything of the time in which it saw nothing.
    """
    if looked_at is None:
        return 0.0
    if now < looked_at:
        raise ValueError(f"time ran backwards, from {looked_at} to {now}")
    return min(now - looked_at, most_s)


@dataclass(frozen=True, slots=True)
class HeartbeatView:
    """A heartbeat at one look; ``phase`` is a number that the worker chose."""

    counter: int
    phase: int


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """The longest silence that a worker is allowed: ``timeout_s``, or more in some phases."""

    timeout_s: float
    by_phase_s: Mapping[int, float] = field(default_factory=lambda: MappingProxyType({}))

    def __post_init__(self) -> None:
        """Refuse limits that no worker could keep."""
        shortest = min((self.timeout_s, *self.by_phase_s.values()))
        if not shortest > 0:
            raise ValueError(f"a worker must be allowed some silence, got {shortest} s")

    def of(self, phase: int) -> float:
        """Return the limit in ``phase`` in seconds, never below ``timeout_s``."""
        return max(self.timeout_s, self.by_phase_s.get(phase, 0.0))


@dataclass(frozen=True, slots=True)
class Finding:
    """The verdict about one worker, with the silence that it rests on."""

    is_dead: bool
    silent_s: float


@dataclass(frozen=True, slots=True)
class _Sighting:
    """The last view of a worker, and the seconds since it changed."""

    view: HeartbeatView
    silent_s: float


@dataclass(frozen=True, slots=True)
class FailureDetector:
    """The silence of each worker at the last look; each look makes a new detector."""

    limits: SilenceLimits
    looked_at: float | None = None
    _sightings: Mapping[WorkerId, _Sighting] = field(default_factory=dict, repr=False)

    def observe(self, views: Mapping[WorkerId, HeartbeatView], now: float) -> FailureDetector:
        """Return the detector after a look at ``views`` of all workers at ``now``.

        A worker without a view is watched no longer; a new worker begins alive. Look at
        least four times within the timeout, or verdicts come later than the timeout.
        """
        passed_s = counted_s(self.looked_at, now, self.limits.timeout_s / LOOKS_PER_LIMIT)
        sightings: dict[WorkerId, _Sighting] = {}
        for worker, view in views.items():
            before = self._sightings.get(worker)
            if before is None or before.view != view:
                sightings[worker] = _Sighting(view, 0.0)
            else:
                sightings[worker] = _Sighting(view, before.silent_s + passed_s)
        return replace(self, looked_at=now, _sightings=sightings)

    def finding(self, worker: WorkerId) -> Finding:
        """Return the verdict about ``worker``; raises ``KeyError`` for one that is not watched."""
        sighting = self._sightings[worker]
        is_dead = sighting.silent_s > self.limits.of(sighting.view.phase)
        return Finding(is_dead, sighting.silent_s)

    def findings(self) -> dict[WorkerId, Finding]:
        """Return the verdicts about all watched workers."""
        return {worker: self.finding(worker) for worker in self._sightings}


@dataclass(frozen=True, slots=True)
class Pause:
    """A time in which no process of a job ran, in seconds of the host's clock."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        """How long it was."""
        return self.ended - self.began

    def overlaps(self, other: Pause) -> bool:
        """Return whether both are one pause, seen by two observers."""
        return self.began < other.ended and other.began < self.ended


@dataclass(frozen=True, slots=True)
class PauseWatch:
    """The job at the last look; each look makes a new watch."""

    beat_s: float
    """The seconds between two beats of a worker that runs."""
    looked_at: float | None = None
    pause: Pause | None = None
    """The pause that has ended with this look, None if there was none."""
    _counters: Mapping[WorkerId, int] = field(default_factory=dict, repr=False)

    def observe(self, counters: Mapping[WorkerId, int], now: float) -> PauseWatch:
        """Return the watch after a look at the workers' counters at ``now``."""
        began = now if self.looked_at is None else self.looked_at
        beats = _AWAKE * (now - began) / self.beat_s
        was_awake = any(
            count - self._counters[worker] > beats
            for worker, count in counters.items()
            if worker in self._counters
        )
        is_pause = now - began >= _LEAST_S and not was_awake
        pause = Pause(began, now) if is_pause else None
        return replace(self, looked_at=now, pause=pause, _counters=dict(counters))
