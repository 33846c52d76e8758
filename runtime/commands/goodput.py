"""Where the wall time of a run went, told from its journal; pure.

Steps are intervals: a record has the moment of the commit and the seconds of the attempt that led
to it.  What lies between two steps is a *gap*, and each gap has one cause (``Bucket``).  So every
nanosecond of a run is in exactly one bucket, and the buckets add up to the wall time.  Times are
whole nanoseconds, because sums of floats are not exact.

*Goodput* is the training of all jobs of a run, as a part of their wall time.  ``goodput_of`` is its
one definition, for ``holdfast report`` and ``holdfast status``.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter, itemgetter
from typing import NamedTuple

from holdfast.runtime.run.checkpoint_events import Checkpoint, CheckpointFailed
from holdfast.runtime.run.entries import Entries, Entry, jobs_of, of
from holdfast.runtime.run.events import JobStarted, LaunchBegan, Paused, Relaunch, Step

_NS = 1_000_000_000
SINCE_LAST_STEP = "since the last step"
"""Nobody knows yet what it will turn out to be: another step, a repair, the end."""


class Bucket(Enum):
    """A use of wall time: its name, and what it is, in words for people."""

    STARTING = "starting", "until the first step: processes, the script's imports, its data"
    TRAINING = "training", "steps that count, validation and callbacks between them"
    REPEATED = "repeated work", "steps that a relaunch took back to its checkpoint"
    REPAIR = "repair", "from a death until survivors have applied the next step"
    """A gap after which the generation is another one, the spoilt attempt included."""
    RELAUNCH = "relaunch", "new processes after all workers of a launch were lost"
    """A gap with a launch in it, and waiting for a new job."""
    RENEWAL = "renewal", "new processes, to fill empty places or to have another number of workers"
    """A gap in which a launch made room for one of all workers, and none was lost."""
    SAVING = "saving stall", "training waited while a save began"
    PAUSED = "paused", "the whole job stood still, as under Slurm's suspend"
    """Wherever that was."""
    ENDING = "ending", "after the last step: the last save, the end of the script"

    def __init__(self, label: str, meaning: str) -> None:
        self.label = label
        self.meaning = meaning


_MEANINGS = {bucket.label: bucket.meaning for bucket in Bucket}


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
        return self.parts_s[Bucket.TRAINING.label] / self.wall_s if self.wall_s else 0.0


class TimePart(NamedTuple):
    """A part of the wall time as people read it."""

    name: str
    seconds: str
    share: float
    meaning: str


def parts_of(parts_s: Mapping[str, float]) -> tuple[tuple[TimePart, ...], str]:
    """Return the parts that took any time, and the wall time, which they add up to."""
    wall_s = sum(parts_s.values())
    decimals = 3 if wall_s < 10 else 2 if wall_s < 1000 else 0

    def text(length_s: float) -> str:
        return f"{length_s:,.{decimals}f} s"

    parts = (
        TimePart(name, text(length_s), length_s / wall_s, _MEANINGS.get(name, ""))
        for name, length_s in parts_s.items()
        if length_s
    )
    return tuple(parts), text(wall_s)


def goodput_of(entries: Entries, now_s: float | None = None) -> Goodput | None:
    """Return where the time of all jobs in ``entries`` went, None without any.

    ``now_s`` is the moment if the last job still runs.
    """
    lengths: Counter[str] = Counter({bucket.label: 0 for bucket in Bucket})
    jobs, redone_from = jobs_of(entries), math.inf
    for job in reversed(jobs):
        is_live = job is jobs[-1] and now_s is not None
        ended_s = max(entry.now for entry in job)
        ended_s = max(ended_s, now_s) if is_live and now_s is not None else ended_s
        spans = spans_of(job, job[0].now, ended_s, redone_from)
        for bucket, length in buckets_of(spans).items():
            is_open = is_live and bucket is Bucket.ENDING
            lengths[SINCE_LAST_STEP if is_open else bucket.label] += length
        if job is not jobs[0]:
            redone_from = min([redone_from, *(entry.event.first for entry in _committed(job))])
    if now_s is not None and not lengths[Bucket.ENDING.label]:
        del lengths[Bucket.ENDING.label]  # the job has no end yet
    parts = {name: length / _NS for name, length in lengths.items()}
    return Goodput(sum(lengths.values()) / _NS, parts, len(jobs)) if jobs else None


def spans_of(
    entries: Entries, began_s: float, ended_s: float, redone_from: float = math.inf
) -> tuple[Span, ...]:
    """Return the run's time in order, without a hole, from ``began_s`` to ``ended_s``.

    Both are monotonic seconds, as are the entries'.  Steps outside are cut.  Steps from
    ``redone_from`` on were done again later, so they do not count.
    """
    began, ended = _ns(began_s), max(_ns(began_s), _ns(ended_s))
    steps = [
        step for step in _steps(entries, redone_from) if step.end > began and step.begin < ended
    ]
    marks, at = _marks(entries), itemgetter(0)
    spans: list[Span] = []
    here, before = began, None
    for step in steps:
        begin, end = max(here, step.begin), min(max(here, step.end), ended)
        begin = min(begin, end)
        within = marks[bisect_right(marks, here, key=at) : bisect_right(marks, begin, key=at)]
        spans.append(Span(_cause([kind for _, kind in within], before, step), here, begin))
        middle = min(max(begin, step.counts_until), end)
        spans.append(Span(Bucket.TRAINING, begin, middle))
        spans.append(Span(Bucket.REPEATED, middle, end))
        here, before = end, step
    spans.append(Span(Bucket.ENDING if before else Bucket.STARTING, here, ended))
    for entry in of(entries, Paused):
        until = _ns(entry.event.until)
        pause = Span(Bucket.PAUSED, until - _ns(entry.event.seconds), until)
        spans = [piece for span in spans for piece in _around(span, pause)]
    return tuple(span for span in spans if span.end > span.begin)


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
    lengths = dict.fromkeys(Bucket, 0)
    for span in spans:
        lengths[span.bucket] += span.end - span.begin
    return lengths


def _marks(entries: Entries) -> list[tuple[int, str]]:
    """Return the moments that tell the cause of a gap, in order; a save counts as it began."""
    found = []
    for entry in entries:
        match entry.event:
            case LaunchBegan():  # a client that shows a job launches nothing
                found.append((_ns(entry.now), "launch"))
            case JobStarted() | Relaunch(is_renewal=False):
                found.append((_ns(entry.now), "loss"))
            case Relaunch():
                found.append((_ns(entry.now), "renewal"))
            case Checkpoint(seconds=seconds) | CheckpointFailed(seconds=seconds):
                found.append((_ns(entry.now - (seconds or 0.0)), "save"))
    return sorted(found)


def _cause(marks: Sequence[str], before: _Step | None, after: _Step) -> Bucket:
    """Return the bucket of the gap between two steps, with these marks in it."""
    if before is None:
        return Bucket.STARTING
    if {"launch", "loss", "renewal"}.intersection(marks):
        is_renewal = "renewal" in marks and "loss" not in marks
        return Bucket.RENEWAL if is_renewal else Bucket.RELAUNCH
    if before.generation != after.generation:
        return Bucket.REPAIR
    return Bucket.SAVING if "save" in marks else Bucket.TRAINING


def _committed(entries: Entries) -> list[Entry[Step]]:
    """Return the steps in the order of their commits, each once.

    That is the order of worlds and of their steps.  Stamps may run back by some milliseconds: the
    one who writes a line down dates it.  The first worker after a death may write down the last
    steps a second time.
    """
    unique: dict[tuple[int, int], Entry[Step]] = {}
    in_order = attrgetter("event.generation", "event.step", "now")
    for entry in sorted(of(entries, Step), key=in_order):
        unique.setdefault((entry.event.step, entry.event.generation), entry)
    return list(unique.values())


def _steps(entries: Entries, redone_from: float) -> Iterator[_Step]:
    """Yield the committed steps in their order, with what of them counts.

    Only another world does steps again.
    """
    found = _committed(entries)
    counting: list[float] = []
    for _, world in itertools.groupby(reversed(found), attrgetter("event.generation")):
        steps = [entry.event for entry in world]
        for step in steps:
            counting.append(min(max(redone_from - step.first, 0), step.number) / step.number)
        redone_from = min([redone_from, *(step.first for step in steps)])
    for entry, part in zip(found, reversed(counting), strict=True):
        end, length = _ns(entry.now), _ns(entry.event.seconds)
        counts_until = end - length + round(part * length)
        yield _Step(entry.event.step, entry.event.generation, end - length, end, counts_until)


def _ns(moment_s: float) -> int:
    return round(moment_s * _NS)
