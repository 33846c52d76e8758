"""Where the wall time of a run went, told from its journal; pure.

Steps are intervals: a record has the moment of the commit and the seconds of the attempt
that led to it.  What lies between two steps is a *gap*, and each gap has one cause.  So
every nanosecond of a run is in exactly one bucket, and the buckets add up to the wall time:

* *starting*: before the first step;
* *training*: steps that count, and gaps that have no other cause (validation, records);
* *repeated work*: steps that a relaunch took back, and so were done in vain;
* *repair*: a gap after which the generation is another one, the spoilt attempt included;
* *relaunch*: a gap with a launch in it, whoever asked for it, and waiting for a new job;
* *renewal*: a gap in which a launch made room for one of all workers;
* *saving stall*: a gap in which a save began;
* *ending*: after the last step.

Times are whole nanoseconds, because sums of floats are not exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.runtime.run.journal import Record

_NS = 1_000_000_000
_LAUNCHES = ("launch", "job_started", "relaunch")
"""A supervisor that takes a job over launches nothing: training has gone on without it."""

_SAVES = ("checkpoint", "checkpoint_failed")


class Bucket(Enum):
    """A use of wall time."""

    STARTING = "starting"
    TRAINING = "training"
    REPEATED = "repeated work"
    REPAIR = "repair"
    RELAUNCH = "relaunch"
    RENEWAL = "renewal"
    SAVING = "saving stall"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a run's time in one bucket, in nanoseconds of the monotonic clock."""

    bucket: Bucket
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class _Step:
    """The attempt that committed a step."""

    number: int
    generation: int
    begin: int
    end: int
    counts: bool


def spans_of(records: Sequence[Record], began_s: float, ended_s: float) -> tuple[Span, ...]:
    """Return the run's time in order, without a hole, from ``began_s`` to ``ended_s``.

    Both are monotonic seconds, as are the records'.  Records outside are cut.
    """
    began, ended = _ns(began_s), max(_ns(began_s), _ns(ended_s))
    steps = [step for step in _steps(records) if step.end > began and step.begin < ended]
    marks = _Marks(records)
    spans: list[Span] = []
    here, before = began, None
    for step in steps:
        begin, end = max(here, step.begin), min(max(here, step.end), ended)
        begin = min(begin, end)
        spans.append(Span(marks.cause(here, begin, before, step), here, begin))
        spans.append(Span(Bucket.TRAINING if step.counts else Bucket.REPEATED, begin, end))
        here, before = end, step
    spans.append(Span(Bucket.ENDING if before else Bucket.STARTING, here, ended))
    return tuple(span for span in spans if span.end > span.begin)


def buckets_of(spans: Sequence[Span]) -> dict[Bucket, int]:
    """Return the nanoseconds of each bucket; they add up to the run's time."""
    return {
        bucket: sum(span.end - span.begin for span in spans if span.bucket is bucket)
        for bucket in Bucket
    }


def seconds(nanoseconds: int) -> float:
    """Return nanoseconds as seconds."""
    return nanoseconds / _NS


class _Marks:
    """The moments of launches, of renewals, and of the beginnings of saves."""

    def __init__(self, records: Sequence[Record]) -> None:
        self._launches = [_ns(r["now"]) for r in records if r["event"] in _LAUNCHES]
        self._renewals = [_ns(r["now"]) for r in records if r.get("is_renewal") is True]
        self._saves = [
            _ns(r["now"] - r.get("seconds", 0.0)) for r in records if r["event"] in _SAVES
        ]

    def cause(self, begin: int, end: int, before: _Step | None, after: _Step) -> Bucket:
        """Return the bucket of the gap between two steps."""
        if before is None:
            return Bucket.STARTING
        if any(begin < moment <= end for moment in self._launches):
            is_renewal = any(begin < moment <= end for moment in self._renewals)
            return Bucket.RENEWAL if is_renewal else Bucket.RELAUNCH
        if before.generation != after.generation:
            return Bucket.REPAIR
        if any(begin < moment <= end for moment in self._saves):
            return Bucket.SAVING
        return Bucket.TRAINING


def _steps(records: Sequence[Record]) -> Iterator[_Step]:
    """Yield the committed steps in the order of their commits, each once.

    The first worker after a death may write records of the last one a second time.
    """
    unique: dict[tuple[int, int], Record] = {}
    for record in sorted((r for r in records if r["event"] == "step"), key=lambda r: r["now"]):
        unique.setdefault((record["step"], record.get("generation", 0)), record)
    found = list(unique.values())
    least_later = float("inf")
    counting: list[bool] = []
    for record in reversed(found):
        counting.append(record["step"] < least_later)
        least_later = min(least_later, record["step"])
    for record, counts in zip(found, reversed(counting), strict=True):
        end = _ns(record["now"])
        begin = end - _ns(record["seconds"])
        yield _Step(record["step"], record.get("generation", 0), begin, end, counts)


def _ns(moment_s: float) -> int:
    return round(moment_s * _NS)
