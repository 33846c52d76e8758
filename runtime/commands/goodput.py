"""Where the wall time of a run went, told from its journal; pure.

Steps are intervals: a record has the moment of the commit and the seconds of the attempt
that led to it.  What lies between two steps is a *gap*, and each gap has one cause.  So
every nanosecond of a run is in exactly one bucket, and the buckets add up to the wall time:

* *starting*: before the first step;
* *training*: steps that count, and gaps that have no other cause (validation, records);
* *repeated work*: steps that a relaunch took back, and so were done in vain;
* *repair*: a gap after which the generation is another one, the spoilt attempt included;
* *relaunch*: a gap with a launch in it, and waiting for a new job;
* *renewal*: a gap in which a launch made room for one of all workers, and none was lost;
* *saving stall*: a gap in which a save began;
* *paused*: the whole job stood still, wherever that was;
* *ending*: after the last step.

Times are whole nanoseconds, because sums of floats are not exact.

`goodput_of` is the one definition of goodput, for ``holdfast report`` and ``holdfast status``: the
training of all jobs of a run, as a part of their wall time.  While no job runs, nothing is lost.
Moments are compared only within one job, because the monotonic clock is that of one boot.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from holdfast.runtime.run.journal import Record

_NS = 1_000_000_000
_LAUNCHES = ("launch", "job_started", "relaunch")
"""A supervisor that takes a job over launches nothing: training has gone on without it."""

_SAVES = ("checkpoint", "checkpoint_failed")


SINCE_LAST_STEP = "since the last step"
"""Nobody knows yet what it will turn out to be: another step, a repair, the end."""


class Bucket(Enum):
    """A use of wall time."""

    STARTING = "starting"
    TRAINING = "training"
    REPEATED = "repeated work"
    REPAIR = "repair"
    RELAUNCH = "relaunch"
    RENEWAL = "renewal"
    SAVING = "saving stall"
    PAUSED = "paused"
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
    counts_until: int
    """What was done after it is repeated work: a relaunch takes back a part of several steps."""


@dataclass(frozen=True, slots=True)
class Goodput:
    """Where the time of a run's jobs went so far, in seconds; the parts add up to ``wall_s``."""

    wall_s: float
    parts_s: Mapping[str, float]
    jobs: int = 1

    @property
    def share(self) -> float:
        """The part of the time that went into steps that count."""
        return self.parts_s[Bucket.TRAINING.value] / self.wall_s if self.wall_s else 0.0


def goodput_of(records: Sequence[Record], now_s: float | None = None) -> Goodput | None:
    """Return where the time of all jobs in ``records`` went, None without any.

    ``now_s`` is the moment if the last job still runs.
    """
    lengths: Counter[str] = Counter({bucket.value: 0 for bucket in Bucket})
    jobs, redone_from = jobs_of(records), math.inf
    for job in reversed(jobs):
        is_live = job is jobs[-1] and now_s is not None
        ended_s = max(record["now"] for record in job)
        ended_s = max(ended_s, now_s) if is_live and now_s is not None else ended_s
        spans = spans_of(job, job[0]["now"], ended_s, redone_from)
        for bucket, length in buckets_of(spans).items():
            is_open = is_live and bucket is Bucket.ENDING
            lengths[SINCE_LAST_STEP if is_open else bucket.value] += length
        if job is not jobs[0]:
            redone_from = min([redone_from, *map(_first_of, _committed(job))])
    if now_s is not None and not lengths[Bucket.ENDING.value]:
        del lengths[Bucket.ENDING.value]  # the job has no end yet
    parts = {name: seconds(length) for name, length in lengths.items()}
    return Goodput(seconds(sum(lengths.values())), parts, len(jobs)) if jobs else None


def jobs_of(records: Sequence[Record]) -> list[Sequence[Record]]:
    """Cut a journal at each ``job_started``; without any it is one job."""
    starts = [index for index, record in enumerate(records) if record["event"] == "job_started"]
    ends = [*starts[1:], len(records)]
    jobs = [records[start:end] for start, end in zip(starts, ends, strict=False)]
    return jobs if jobs or not records else [records]


def spans_of(
    records: Sequence[Record], began_s: float, ended_s: float, redone_from: float = math.inf
) -> tuple[Span, ...]:
    """Return the run's time in order, without a hole, from ``began_s`` to ``ended_s``.

    Both are monotonic seconds, as are the records'.  Records outside are cut.  Steps from
    ``redone_from`` on were done again later, so they do not count.
    """
    began, ended = _ns(began_s), max(_ns(began_s), _ns(ended_s))
    steps = [
        step for step in _steps(records, redone_from) if step.end > began and step.begin < ended
    ]
    marks = _Marks(records)
    spans: list[Span] = []
    here, before = began, None
    for step in steps:
        begin, end = max(here, step.begin), min(max(here, step.end), ended)
        begin = min(begin, end)
        spans.append(Span(marks.cause(here, begin, before, step), here, begin))
        middle = min(max(begin, step.counts_until), end)
        spans.append(Span(Bucket.TRAINING, begin, middle))
        spans.append(Span(Bucket.REPEATED, middle, end))
        here, before = end, step
    spans.append(Span(Bucket.ENDING if before else Bucket.STARTING, here, ended))
    for pause in _pauses(records):
        spans = [piece for span in spans for piece in _around(span, pause)]
    return tuple(span for span in spans if span.end > span.begin)


def _pauses(records: Sequence[Record]) -> Iterator[Span]:
    """Yield the times in which the whole job stood still."""
    for record in records:
        if record["event"] == "paused":
            until = _ns(record["until"])
            yield Span(Bucket.PAUSED, until - _ns(record["seconds"]), until)


def _around(span: Span, pause: Span) -> tuple[Span, Span, Span]:
    """Cut ``pause`` out of ``span``; pieces may be empty."""
    begin = min(max(pause.begin, span.begin), span.end)
    end = min(max(pause.end, begin), span.end)
    return (
        Span(span.bucket, span.begin, begin),
        Span(Bucket.PAUSED, begin, end),
        Span(span.bucket, end, span.end),
    )


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
        self._launches = sorted(_ns(r["now"]) for r in records if r["event"] in _LAUNCHES)
        self._renewals = sorted(_ns(r["now"]) for r in records if _is_renewal(r))
        self._losses = sorted(
            _ns(r["now"])
            for r in records
            if r["event"] == "job_started" or (r["event"] == "relaunch" and not _is_renewal(r))
        )
        self._saves = sorted(
            _ns(r["now"] - r.get("seconds", 0.0)) for r in records if r["event"] in _SAVES
        )

    def cause(self, begin: int, end: int, before: _Step | None, after: _Step) -> Bucket:
        """Return the bucket of the gap between two steps."""
        if before is None:
            return Bucket.STARTING
        if _is_any_within(self._launches, begin, end):
            is_renewal = _is_any_within(self._renewals, begin, end)
            is_loss = _is_any_within(self._losses, begin, end)
            return Bucket.RENEWAL if is_renewal and not is_loss else Bucket.RELAUNCH
        if before.generation != after.generation:
            return Bucket.REPAIR
        if _is_any_within(self._saves, begin, end):
            return Bucket.SAVING
        return Bucket.TRAINING


def _is_any_within(moments: Sequence[int], begin: int, end: int) -> bool:
    """Return whether one of sorted moments is after ``begin``, and not after ``end``."""
    return bisect_right(moments, begin) < bisect_right(moments, end)


def _is_renewal(record: Record) -> bool:
    return record["event"] == "relaunch" and record.get("is_renewal") is True


def _committed(records: Sequence[Record]) -> list[Record]:
    """Return the records of steps in the order of their commits, each once.

    The first worker after a death may write records of the last one a second time.
    """
    unique: dict[tuple[int, int], Record] = {}
    for record in sorted((r for r in records if r["event"] == "step"), key=lambda r: r["now"]):
        unique.setdefault((record["step"], record.get("generation", 0)), record)
    return list(unique.values())


def _steps(records: Sequence[Record], redone_from: float) -> Iterator[_Step]:
    """Yield the committed steps in their order, with what of them counts."""
    found = _committed(records)
    counting: list[float] = []
    for record in reversed(found):
        kept = min(max(redone_from - _first_of(record), 0), _count_of(record))
        counting.append(kept / _count_of(record))
        redone_from = min(redone_from, _first_of(record))
    for record, part in zip(found, reversed(counting), strict=True):
        end, length = _ns(record["now"]), _ns(record["seconds"])
        counts_until = end - length + round(part * length)
        yield _Step(record["step"], record.get("generation", 0), end - length, end, counts_until)


def _count_of(record: Record) -> int:
    """Return how many steps a record stands for."""
    return max(1, int(record.get("steps", 1)))


def _first_of(record: Record) -> int:
    return int(record["step"]) - _count_of(record) + 1


def _ns(moment_s: float) -> int:
    return round(moment_s * _NS)
