"""How long each strike kept a run from training; pure.

A repair or a relaunch belongs to the last strike before its end that can have caused it.  If none
can, it belongs to the last strike at all.  A strike with such gaps has cost the time up to the end
of the first one: a stopped agent is found and replaced only after a while.  A strike without one
has cost the time to the first step that began after it.  Each further gap of a strike, and a gap
before all strikes, has no explanation: a healthy worker may have been fenced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.runtime.chaos.strike import Blow, Kind, Target
from holdfast.runtime.commands.goodput import Bucket, Span, seconds

_LOST = (Bucket.REPAIR, Bucket.RELAUNCH)
_WORK = (Bucket.TRAINING, Bucket.REPEATED)
_CARRIES_TRAINING = (Target.WORKER, Target.GUARD, Target.AGENT, Target.MPIEXEC)
_TAKES_ORDERS = (Target.AGENT, Target.SUPERVISOR)
_HOLDS_STATE = (Target.DISK, Target.SHM)


@dataclass(frozen=True, slots=True)
class Hit:
    """A strike that had a victim, at ``now`` monotonic seconds."""

    now: float
    blow: Blow


def recovery_times(hits: Sequence[Hit], spans: Sequence[Span]) -> Iterator[float | None]:
    """Yield the seconds that each hit cost, None if no training came after it.

    ``hits`` and ``spans`` are in the order of time.
    """
    owners = {span: _owner(span, hits) for span in spans if span.bucket in _LOST}
    for hit in hits:
        moment = _ns(hit)
        ends = [span.end for span, owner in owners.items() if owner is hit]
        ends = ends or [s.begin for s in spans if s.bucket in _WORK and s.begin >= moment][:1]
        yield seconds(ends[0] - moment) if ends else None


def pauses(hits: Sequence[Hit], spans: Sequence[Span]) -> Iterator[bool]:
    """Yield for each hit whether training has paused.

    Without repair and relaunch, the next step begins after two usual ones at the latest.
    """
    lost = [_owner(span, hits) for span in spans if span.bucket in _LOST]
    steps = sorted(seconds(span.end - span.begin) for span in spans if span.bucket in _WORK)
    usual_s = steps[len(steps) // 2] if steps else 0.0
    for hit, recovered_s in zip(hits, recovery_times(hits, spans), strict=True):
        is_late = recovered_s is not None and recovered_s > 2 * usual_s
        yield is_late or any(owner is hit for owner in lost)


def unexplained(hits: Sequence[Hit], spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the repairs and relaunches that no strike explains."""
    explained: list[Hit] = []
    for span in spans:
        if span.bucket in _LOST:
            owner = _owner(span, hits)
            if owner is None or any(owner is other for other in explained):
                yield span
            else:
                explained.append(owner)


def can_interrupt(blow: Blow) -> bool:
    """Return whether training stops for a while after ``blow``, by the failure model."""
    if blow.kind in (Kind.KILL, Kind.STOP):
        return blow.target in _CARRIES_TRAINING
    if blow.kind is Kind.TERM:
        return blow.target in _TAKES_ORDERS
    return blow.target in _HOLDS_STATE


def _owner(span: Span, hits: Sequence[Hit]) -> Hit | None:
    before = [hit for hit in hits if _ns(hit) < span.end]
    causes = [hit for hit in before if can_interrupt(hit.blow)]
    return next(iter((causes or before)[-1:]), None)


def _ns(hit: Hit) -> int:
    return round(hit.now * 1_000_000_000)
