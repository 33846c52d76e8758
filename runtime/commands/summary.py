"""The report of a run, and where its wall time went, told from its journal; pure.

The journal is a list of events that only grows.  So it also holds steps that do not count, because
a relaunch rolled them back.  The rules are

* a step counts if no later record takes the run back before it: a step record
  with the same or a lower number, or the first restore of a later launch;
* a job is the records from one ``job_started`` to the next; times are compared
  only within one job, because the monotonic clock is that of one boot;
* wall time is the sum over jobs: while nothing runs, nothing is lost.

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
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from holdfast.runtime.commands.run_report import EpochReport, Report
from holdfast.runtime.run.checkpoint_events import Checkpoint, CheckpointFailed, CheckpointSkipped
from holdfast.runtime.run.entries import Entry, completed_step, kind_of, last_of, of
from holdfast.runtime.run.events import (
    Completed,
    Epoch,
    Failure,
    FaultStruck,
    JobEnded,
    JobStarted,
    JournalGap,
    Launch,
    OutputDropped,
    Paused,
    Recovery,
    Relaunch,
    Restored,
    Step,
    Stopped,
    death_counts,
)

_NS = 1_000_000_000
_LAUNCHES = (Launch, JobStarted, Relaunch)
"""A client that shows a job launches nothing: training has gone on without it."""

SINCE_LAST_STEP = "since the last step"
"""Nobody knows yet what it will turn out to be: another step, a repair, the end."""

Entries = Sequence[Entry[Any]]


def summarize(entries: Entries) -> Report:
    """Return the report of a run from all lines of its journal, in their order."""
    jobs = jobs_of(entries) if of(entries, JobStarted) else []  # a journal that was removed
    steps, epochs = _what_counts(entries)
    completed = last_of(entries, Completed)
    ended = last_of(jobs[-1], JobEnded) if jobs else None
    goodput = goodput_of(entries) if jobs else None
    computed = {
        "failures": tuple(_failures(entries)),
        "recoveries": tuple(recovery for job in jobs for recovery in _recoveries(job)),
        "relaunches": tuple(relaunch for job in jobs for relaunch in _relaunches(job)),
    }
    return Report(
        run_id=entries[-1].run_id if entries else None,
        exit_code=ended and ended.event.exit_code,
        reason=ended and ended.event.reason,
        completed_step=completed_step(entries),
        steps=max([completed.event.step if completed else 0, *(step.step for step in steps[-1:])]),
        samples=_count_samples(steps, epochs),
        epochs=epochs,
        metrics=_final_metrics(completed and completed.event, epochs),
        death_counts=_death_counts(entries),
        skipped_checkpoints=len(of(entries, CheckpointSkipped)),
        jobs=len(jobs),
        wall_s=sum(_duration(job) for job in jobs),
        step_s=sum(step.seconds for step in steps),
        goodput=0.0 if goodput is None else goodput.share,
        parts_s={} if goodput is None else goodput.parts_s,
        paused_s=0.0 if goodput is None else goodput.parts_s[Bucket.PAUSED.value],
        final_sha256=completed and completed.event.sha256,
        lost_events=sum(entry.event.lines for entry in of(entries, JournalGap)),
        lost_lines=sum(map(_lost_lines, jobs)),
        **(_listed(entries) | computed),
    )


def _listed(entries: Entries) -> dict[str, Any]:
    """Return the events that the report lists as they are, by the fields that have them."""
    found: defaultdict[str, list[NamedTuple]] = defaultdict(list)
    for entry in entries:
        kind = kind_of(entry.event)
        if kind is not None and kind.listed is not None:
            found[kind.listed].append(entry.event)
    return {name: tuple(events) for name, events in found.items()}


def _death_counts(entries: Entries) -> tuple[str, ...]:
    """Return the deaths by host and cause, without those that were killed with others."""
    failures = [entry.event for entry in of(entries, Failure)]
    return death_counts((death.host, death.cause) for death in failures if not death.collateral)


def _duration(job: Entries) -> float:
    ended = last_of(job, JobEnded)
    last = max(entry.now for entry in job) if ended is None else ended.now
    return float(last - job[0].now)


def _what_counts(entries: Entries) -> tuple[list[Step], tuple[EpochReport, ...]]:
    """Return the steps and the epochs that were not rolled back."""
    steps: list[Step] = []
    epochs: list[EpochReport] = []
    # Before its first step a launch restores the end of each complete training, and then
    # the step that it begins from.
    restored: int | None = None
    is_starting = True
    for entry in entries:
        match entry.event:
            case Launch() | JobStarted():
                _roll_back(steps, epochs, restored)
                restored, is_starting = None, True
            case Restored(step=step) if is_starting:
                restored = max(restored or 0, step)
            case Step() as step:
                restored, is_starting = None, False
                _roll_back(steps, epochs, step.first - 1)
                steps.append(step)
            case Epoch() as epoch:
                epochs = [before for before in epochs if before.epoch < epoch.epoch]
                epochs.append(EpochReport.of(epoch))
    _roll_back(steps, epochs, restored)
    return steps, tuple(epochs)


def _roll_back(steps: list[Step], epochs: list[EpochReport], last: int | None) -> None:
    """Forget everything after the step ``last``, if there is one."""
    if last is None:
        return
    while steps and steps[-1].step > last:
        step = steps.pop()
        left = step.number - (step.step - last)
        if left > 0:  # all steps of a line are taken as equal
            part = left / step.number
            samples, length_s = round(step.samples * part), step.seconds * part
            steps.append(step._replace(step=last, seconds=length_s, samples=samples, steps=left))
    while epochs and epochs[-1].step > last:
        epochs.pop()


def _count_samples(steps: Sequence[Step], epochs: Sequence[EpochReport]) -> int:
    """Count by the ledger for complete epochs, by steps after them.

    The rank that writes steps down may die between applying a step and recording it.
    The ledger misses no step.
    """
    last = epochs[-1].step if epochs else 0
    running = sum(step.samples for step in steps if step.step > last)
    return sum(epoch.samples for epoch in epochs) + running


def _final_metrics(completed: Completed | None, epochs: Sequence[EpochReport]) -> dict[str, float]:
    """Return training metrics under their names, and those of validation after ``val_``."""
    if completed is not None and completed.metrics:
        metrics, validation = completed.metrics, completed.validation or {}
    elif epochs:
        metrics, validation = epochs[-1].metrics, epochs[-1].validation
    else:
        return {}
    return dict(metrics) | {f"val_{name}": value for name, value in validation.items()}


def _failures(entries: Entries) -> Iterable[Failure]:
    job, began = 0, 0.0
    for entry in entries:
        if isinstance(entry.event, JobStarted):
            job, began = job + 1, entry.now
        elif isinstance(entry.event, Failure):
            dated = entry.event._replace(job=job, after_s=entry.now - began)
            yield dated if job else entry.event


def _lost_lines(job: Entries) -> int:
    """Return the lines that a job has lost; each agent of it counts anew from 0."""
    counts = [entry.event.lines for entry in of(job, OutputDropped)]
    ends = [after < count for count, after in itertools.pairwise([*counts, 0])]
    return sum(itertools.compress(counts, ends))


def _recoveries(job: Entries) -> Iterable[Recovery]:
    for entry in of(job, Recovery):
        since_ms = _since_failure_ms(job, entry.event)
        yield entry.event._replace(since_failure_ms=since_ms)


def _since_failure_ms(job: Entries, recovery: Recovery) -> float | None:
    """Return the time from the first of the deaths to the next applied step."""
    detected, next_step_ms = recovery.detected, recovery.next_step_ms
    if detected is None or next_step_ms is None:
        return next_step_ms
    deaths = [_death_of(worker, job, detected) for worker in recovery.lost]
    began = min([death for death in deaths if death is not None], default=detected)
    return float((detected - began) * 1000 + next_step_ms)


def _death_of(worker: int, job: Entries, before: float) -> float | None:
    """Return the time of a worker's fault, else of its observed death, not after ``before``.

    A worker dies of one fault at most.  Ids may be counted anew after a relaunch, so the
    latest time is the right one.
    """
    for told in (of(job, FaultStruck), of(job, Failure)):
        found = [e.now for e in told if e.event.worker == worker and e.now <= before]
        if found:
            return found[-1]
    return None


def _relaunches(job: Entries) -> Iterable[Relaunch]:
    for index, entry in enumerate(job):
        if not isinstance(entry.event, Relaunch):
            continue
        rest = job[index + 1 :]
        after = list(itertools.takewhile(lambda e: not isinstance(e.event, Relaunch), rest))
        left = _left_off(job[:index], is_renewal=entry.event.is_renewal)
        restored = next(iter(of(after, Restored)), None)
        step = next(iter(of(after, Step)), None)
        yield entry.event._replace(
            restored_step=restored and restored.event.step,
            since_failure_ms=None if step is None or left is None else (step.now - left) * 1000,
        )


def _left_off(before: Entries, *, is_renewal: bool) -> float | None:
    """Return the time of the stop, or of the death, after which a launch was followed."""
    if is_renewal:
        stopped = last_of(before, Stopped)
        return stopped and stopped.now
    failure = last_of(before, Failure)
    if failure is None:
        return None
    death = _death_of(failure.event.worker, before, failure.now)
    return failure.now if death is None else death


class Bucket(Enum):
    """A use of wall time."""

    STARTING = "starting"
    """Before the first step."""
    TRAINING = "training"
    """Steps that count, and gaps that have no other cause: validation, records."""
    REPEATED = "repeated work"
    """Steps that a relaunch took back, and so were done in vain."""
    REPAIR = "repair"
    """A gap after which the generation is another one, the spoilt attempt included."""
    RELAUNCH = "relaunch"
    """A gap with a launch in it, and waiting for a new job."""
    RENEWAL = "renewal"
    """A gap in which a launch made room for one of all workers, and none was lost."""
    SAVING = "saving stall"
    """A gap in which a save began."""
    PAUSED = "paused"
    """The whole job stood still, wherever that was."""
    ENDING = "ending"
    """After the last step."""


MEANINGS = {
    Bucket.STARTING.value: "until the first step: processes, the script's imports, its data",
    Bucket.TRAINING.value: "steps that count, validation and callbacks between them",
    Bucket.REPEATED.value: "steps that a relaunch took back to its checkpoint",
    Bucket.REPAIR.value: "from a death until survivors have applied the next step",
    Bucket.RELAUNCH.value: "new processes after all workers of a launch were lost",
    Bucket.RENEWAL.value: "new processes to have all workers again",
    Bucket.SAVING.value: "training waited while a save began",
    Bucket.PAUSED.value: "the whole job stood still, as under Slurm's suspend",
    Bucket.ENDING.value: "after the last step: the last save, the end of the script",
}
"""What each part of the wall time is, in words for people."""


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


class Part(NamedTuple):
    """A part of the wall time as people read it."""

    name: str
    seconds: str
    share: float
    meaning: str


def parts_of(parts_s: Mapping[str, float]) -> tuple[tuple[Part, ...], str]:
    """Return the parts that took any time, and the wall time, which they add up to."""
    wall_s = sum(parts_s.values())
    decimals = 3 if wall_s < 10 else 2 if wall_s < 1000 else 0

    def text(length_s: float) -> str:
        return f"{length_s:,.{decimals}f} s"

    parts = (
        Part(name, text(length_s), length_s / wall_s, MEANINGS.get(name, ""))
        for name, length_s in parts_s.items()
        if length_s
    )
    return tuple(parts), text(wall_s)


def goodput_of(entries: Entries, now_s: float | None = None) -> Goodput | None:
    """Return where the time of all jobs in ``entries`` went, None without any.

    ``now_s`` is the moment if the last job still runs.
    """
    lengths: Counter[str] = Counter({bucket.value: 0 for bucket in Bucket})
    jobs, redone_from = jobs_of(entries), math.inf
    for job in reversed(jobs):
        is_live = job is jobs[-1] and now_s is not None
        ended_s = max(entry.now for entry in job)
        ended_s = max(ended_s, now_s) if is_live and now_s is not None else ended_s
        spans = spans_of(job, job[0].now, ended_s, redone_from)
        for bucket, length in buckets_of(spans).items():
            is_open = is_live and bucket is Bucket.ENDING
            lengths[SINCE_LAST_STEP if is_open else bucket.value] += length
        if job is not jobs[0]:
            redone_from = min([redone_from, *(entry.event.first for entry in _committed(job))])
    if now_s is not None and not lengths[Bucket.ENDING.value]:
        del lengths[Bucket.ENDING.value]  # the job has no end yet
    parts = {name: seconds(length) for name, length in lengths.items()}
    return Goodput(seconds(sum(lengths.values())), parts, len(jobs)) if jobs else None


def jobs_of(entries: Entries) -> list[Entries]:
    """Cut a journal at each begin of a job; without any it is one job."""
    starts = [i for i, entry in enumerate(entries) if isinstance(entry.event, JobStarted)]
    ends = [*starts[1:], len(entries)]
    jobs = [entries[start:end] for start, end in zip(starts, ends, strict=False)]
    return jobs if jobs or not entries else [entries]


def newest_job(entries: Entries) -> Entries:
    """Return the entries from the last begin of a job on; all of them without one."""
    return (jobs_of(entries) or [entries])[-1]


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
    marks = _Marks(entries)
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
    for pause in _pauses(entries):
        spans = [piece for span in spans for piece in _around(span, pause)]
    return tuple(span for span in spans if span.end > span.begin)


def _pauses(entries: Entries) -> Iterator[Span]:
    """Yield the times in which the whole job stood still."""
    for entry in of(entries, Paused):
        until = _ns(entry.event.until)
        yield Span(Bucket.PAUSED, until - _ns(entry.event.seconds), until)


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


def seconds(nanoseconds: int) -> float:
    """Return nanoseconds as seconds."""
    return nanoseconds / _NS


class _Marks:
    """The moments of launches, of renewals, and of the beginnings of saves."""

    def __init__(self, entries: Entries) -> None:
        relaunches = of(entries, Relaunch)
        renewals = [entry for entry in relaunches if entry.event.is_renewal]
        losses = [entry for entry in relaunches if not entry.event.is_renewal]
        self._launches = _moments(e for e in entries if isinstance(e.event, _LAUNCHES))
        self._renewals = _moments(renewals)
        self._losses = _moments([*losses, *of(entries, JobStarted)])
        saves = [(save.now, save.event.seconds) for save in of(entries, Checkpoint)]
        failed = [(save.now, save.event.seconds or 0.0) for save in of(entries, CheckpointFailed)]
        self._saves = sorted(_ns(now - seconds) for now, seconds in (*saves, *failed))

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


def _moments(entries: Iterable[Entry[Any]]) -> list[int]:
    return sorted(_ns(entry.now) for entry in entries)


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
