"""The course of a run: what happened at which second of its wall time; pure.

Time is that of `goodput_of`: the seconds of all jobs one after another, without what lies between
them.  So a moment here is a place on the bar of goodput.  Speed is a histogram: each step spreads
its samples over the time that it took, so no sample is lost however wide the bins are.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TypeVar

from holdfast.runtime.run.checkpoint_events import Checkpoint
from holdfast.runtime.run.entries import of
from holdfast.runtime.run.events import (
    Failure,
    HostLost,
    JobEnded,
    Launch,
    MemoryUsed,
    Recovery,
    Relaunch,
    Step,
    WorldBegan,
)
from holdfast.runtime.tools.report import Report
from holdfast.runtime.tools.summary import Bucket, Entries, jobs_of, seconds, spans_of

_Event = TypeVar("_Event")

_MOST_BINS = 240
"""A plot has about 1000 pixels; narrower bins would show the lengths of single steps."""


@dataclass(frozen=True, slots=True)
class Save:
    """A committed save, ``at_s`` its begin: how long until it was durable, and what it stalled.

    The stall is None where the gap had another cause, such as a repair.
    """

    at_s: float
    step: int
    bytes: int
    durable_s: float
    stall_s: float | None


@dataclass(frozen=True, slots=True)
class Return:
    """How a run came back to training after a death: its phases in order, in seconds."""

    title: str
    phases_s: Mapping[str, float]

    @property
    def length_s(self) -> float:
        """The sum of its phases."""
        return sum(self.phases_s.values())


@dataclass(frozen=True, slots=True)
class Memory:
    """The most memory of a host that was in use until each moment, as far as a job has told."""

    limit: int
    place: str
    peaks: tuple[tuple[float, int], ...]

    @property
    def most(self) -> int:
        """The most of all jobs."""
        return max(used for _, used in self.peaks)

    @property
    def share(self) -> float:
        """The part of the limit that was in use."""
        return self.most / self.limit if self.limit else 0.0


@dataclass(frozen=True, slots=True)
class Course:
    """What a run did when; a job begins at each of ``starts_s``."""

    wall_s: float
    starts_s: tuple[float, ...]
    bin_s: float
    samples_per_s: tuple[float, ...]
    """Of each bin in turn, work that a relaunch took back included."""
    workers: tuple[tuple[float, int], ...]
    """From each moment on, how many train together."""
    deaths: tuple[tuple[float, Failure], ...]
    saves: tuple[Save, ...]
    recoveries: tuple[Return, ...]
    relaunches: tuple[Return, ...]
    memory: Mapping[str, Memory]
    """By host, whose name is empty if the job has one."""
    events: tuple[tuple[float, str], ...]
    """What people are told, each sentence once in a row: workers and head may both tell it."""


def course_of(entries: Entries, report: Report) -> Course:
    """Return the course of a run from all lines of its journal, in their order, and its report."""
    jobs = jobs_of(entries)
    clocks, here = [], 0.0
    for job in jobs:
        clocks.append(here - job[0].now)
        here += max(entry.now for entry in job) - job[0].now
    each = list(zip(jobs, clocks, strict=True))

    def told(kind: type[_Event]) -> list[tuple[float, _Event]]:
        return [(clock + entry.now, entry.event) for job, clock in each for entry in of(job, kind)]

    bin_s, rates = _speed(told(Step), here)
    return Course(
        wall_s=here,
        starts_s=tuple(clock + job[0].now for job, clock in each),
        bin_s=bin_s,
        samples_per_s=rates,
        workers=tuple(point for job, clock in each for point in _workers(job, clock)),
        deaths=tuple(told(Failure)),
        saves=tuple(save for job, clock in each for save in _saves(job, clock)),
        recoveries=tuple(map(_recovery, report.recoveries)),
        relaunches=tuple(_relaunches(jobs, report)),
        memory=_memory(told(MemoryUsed)),
        events=tuple(
            (clock + one.now, one.words)
            for job, clock in each
            for before, one in itertools.pairwise([None, *filter(attrgetter("words"), job)])
            if one is not None and (before is None or before.words != one.words)
        ),
    )


def _speed(steps: Sequence[tuple[float, Step]], wall_s: float) -> tuple[float, tuple[float, ...]]:
    """Return the width of a bin, and the samples per second in each."""
    if not steps or wall_s <= 0:
        return 0.0, ()
    bins = min(_MOST_BINS, max(1, len(steps)))
    width, sums = wall_s / bins, [0.0] * bins
    for end, step in steps:
        length = max(step.seconds, 1e-9)
        first = min(max(int((end - length) / width), 0), bins - 1)
        last = min(max(int(end / width), first), bins - 1)
        for index in range(first, last + 1):
            begin = end - length if index == first else index * width
            until = end if index == last else (index + 1) * width
            sums[index] += step.samples * (until - begin) / length
    return width, tuple(sum_ / width for sum_ in sums)


def _workers(job: Entries, clock: float) -> Iterator[tuple[float, int]]:
    """Yield each change of the number of workers that train together."""
    together: set[int] = set()
    yield clock + job[0].now, 0
    for entry in job:
        before = len(together)
        match entry.event:
            case WorldBegan(workers=workers):
                together = set(workers)
            case Failure(worker=worker):
                together = together - {worker}
            case HostLost(workers=workers):
                together = together - set(workers)
            case Launch() | JobEnded():
                together = set()
        if len(together) != before:
            yield clock + entry.now, len(together)
    yield clock + max(entry.now for entry in job), len(together)


def _saves(job: Entries, clock: float) -> Iterator[Save]:
    spans = spans_of(job, job[0].now, max(entry.now for entry in job))
    begins = [span.begin for span in spans]
    taken: set[int] = set()
    for entry in of(job, Checkpoint):
        began = entry.now - entry.event.seconds
        index = bisect_right(begins, round(began * 1e9)) - 1
        bucket = spans[index].bucket if index >= 0 else Bucket.STARTING
        stall: float | None = None
        if bucket is Bucket.SAVING and index not in taken:
            taken.add(index)  # of several saves in one gap the first has made it
            stall = seconds(spans[index].end - spans[index].begin)
        elif bucket in (Bucket.SAVING, Bucket.TRAINING):
            stall = 0.0
        save = entry.event
        yield Save(clock + began, save.step, save.bytes, save.seconds, stall)


def _memory(told: Iterable[tuple[float, MemoryUsed]]) -> dict[str, Memory]:
    """Return the memory of each host, of the limit that was the closest one at last."""
    found: dict[str, Memory] = {}
    for at_s, event in told:
        host, place = event.host or "", event.place or "memory"
        before = found.get(host)
        is_same = before is not None and (before.place, before.limit) == (place, event.limit)
        peaks = before.peaks if before is not None and is_same else ()
        found[host] = Memory(event.limit, place, (*peaks, (at_s, event.used)))
    return found


def _recovery(event: Recovery) -> Return:
    """Return a repair in place; the times of its record are since the failure was noticed."""
    since, before = event.since_failure_ms, 0.0
    phases = {"failure noticed": max(0.0, (since or 0.0) - (event.next_step_ms or math.inf)) / 1000}
    for name, end in {
        "others told": event.revoked_ms,
        "world without the dead": event.shrunk_ms,
        "agreed on the state": event.agreed_ms,
        "state adopted": event.adopted_ms,
        "next step applied": event.next_step_ms,
    }.items():
        if end is not None:
            phases[name], before = max(0.0, end - before) / 1000, max(end, before)
    lost = " and ".join(map(str, event.lost))
    return Return(f"step {event.step}, without {lost}", phases)


def _relaunches(jobs: Sequence[Entries], report: Report) -> Iterator[Return]:
    """Yield the relaunches that a step has followed, with what came before it."""
    events = iter(report.relaunches)
    for job in jobs:
        for index, entry in enumerate(job):
            event = next(events, None) if isinstance(entry.event, Relaunch) else None
            step = event and next((e for e in job[index:] if isinstance(e.event, Step)), None)
            if event is None or step is None or event.since_failure_ms is None:
                continue
            world = next((e for e in job[index:] if isinstance(e.event, WorldBegan)), step)
            started, first = max(0.0, world.now - entry.now), max(0.0, step.now - world.now)
            phases = {
                "failure noticed": max(0.0, event.since_failure_ms / 1000 - started - first),
                "workers started, state restored": started,
                "next step applied": first,
            }
            what = "renewal" if event.is_renewal else "relaunch"
            yield Return(f"{what} from step {event.restored_step or 0}", phases)
