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

import dataclasses
import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from holdfast.runtime.evidence.repeats import repeated_samples, repeated_step
from holdfast.runtime.run.journal import Record, completed_step
from holdfast.runtime.tools.report import (
    CheckpointReport,
    EpochReport,
    Failure,
    Mended,
    NotMended,
    Pressure,
    Recovery,
    Rejected,
    Relaunch,
    Report,
    Rotten,
    Struck,
    Suspected,
    Unread,
    WrongMemory,
)

_AFTER_ALL: Record = {"event": "launch"}
_BEGINNINGS = ("launch", "job_started")
_Value = TypeVar("_Value")
_NS = 1_000_000_000
_LAUNCHES = ("launch", "job_started", "relaunch")
"""A supervisor that takes a job over launches nothing: training has gone on without it."""

_SAVES = ("checkpoint", "checkpoint_failed")
SINCE_LAST_STEP = "since the last step"
"""Nobody knows yet what it will turn out to be: another step, a repair, the end."""


def summarize(records: Sequence[Record]) -> Report:
    """Return the report of a run from all records of its journal, in their order."""
    has_job = any(record["event"] == "job_started" for record in records)
    jobs = jobs_of(records) if has_job else []  # a script of its own writes no begin
    steps, epochs = _what_counts(records)
    completed = last_of(records, "completed")
    ended = last_of(jobs[-1], "job_ended") if jobs else {}
    wall_s = sum(_duration(job) for job in jobs)
    goodput = goodput_of(records) if jobs else None
    return Report(
        run_id=records[-1].get("run_id") if records else None,
        exit_code=ended.get("exit_code"),
        reason=ended.get("reason"),
        completed_step=completed_step(records),
        steps=max([completed.get("step", 0)] + [step["step"] for step in steps[-1:]]),
        samples=_count_samples(steps, epochs),
        epochs=epochs,
        metrics=_final_metrics(completed, epochs),
        faults=_all(Struck, records, "fault"),
        failures=tuple(_failures(records)),
        suspected=_all(Suspected, records, "suspected"),
        repeated=_repeated(jobs, steps),
        recoveries=tuple(recovery for job in jobs for recovery in _recoveries(job)),
        relaunches=tuple(relaunch for job in jobs for relaunch in _relaunches(job)),
        checkpoints=_all(CheckpointReport, _put_once(records), "checkpoint"),
        failed_checkpoints=_all(Rejected, records, "checkpoint_failed"),
        rejected_checkpoints=_all(Rejected, records, "rejected"),
        unread_checkpoints=_all(Unread, records, "unreadable"),
        skipped_checkpoints=sum(record["event"] == "checkpoint_skipped" for record in records),
        scrub_failures=_all(Rotten, records, "scrub_failed"),
        mends=_all(Mended, records, "mended"),
        failed_mends=_all(NotMended, records, "mend_failed"),
        memory_differences=_all(WrongMemory, records, "memory_differs"),
        jobs=len(jobs),
        wall_s=wall_s,
        step_s=sum(step["seconds"] for step in steps),
        goodput=0.0 if goodput is None else goodput.share,
        paused_s=0.0 if goodput is None else goodput.parts_s[Bucket.PAUSED.value],
        final_sha256=completed.get("sha256"),
        pressures=_all(Pressure, records, "pressure"),
        lost_events=sum(map(_lines_of, records)),
        is_begun_again=any(record["event"] == "journal_removed" for record in records),
        lost_lines=sum(_lost_lines(job, of) for job in jobs for of in ("workers", "supervisor")),
    )


def _put_once(records: Sequence[Record]) -> list[Record]:
    """Leave out the saves of a local directory that the run directory has taken as well."""
    saves = [record for record in records if record["event"] == "checkpoint"]
    lasting = {(r["step"], r.get("generation")) for r in saves if "place" not in r}
    return [r for r in saves if "place" not in r or (r["step"], r.get("generation")) not in lasting]


def _repeated(jobs: Sequence[Sequence[Record]], steps: Sequence[Record]) -> tuple[str, ...]:
    """Return what the deaths have in common; a step that was applied at last is forgiven."""
    records = [record for job in jobs for record in job]
    failures = [record for record in records if record["event"] == "failure"]
    told = [record["text"] for record in records if record["event"] == "suspicion"]
    step, samples = repeated_step(failures), repeated_samples(failures)
    applied = max((record["step"] for record in steps), default=0)
    if step is not None and step.step > applied:
        told.append(str(step))
    if samples is not None:
        told.append(str(samples))
    return tuple(told)


def _duration(job: Sequence[Record]) -> float:
    ended = last_of(job, "job_ended")
    return float(ended.get("now", max(record["now"] for record in job)) - job[0]["now"])


def _what_counts(
    records: Sequence[Record],
) -> tuple[list[Record], tuple[EpochReport, ...]]:
    """Return the step records and the epochs that were not rolled back."""
    steps: list[Record] = []
    epochs: list[EpochReport] = []
    # Before its first step a launch restores the end of each complete training, and then
    # the step that it begins from.
    restored: int | None = None
    is_starting = True
    for record in (*records, _AFTER_ALL):
        event = record["event"]
        if event in _BEGINNINGS:
            if restored is not None:
                _roll_back(steps, epochs, restored)
            restored, is_starting = None, True
        elif event == "restored" and is_starting:
            restored = max(restored or 0, record["step"])
        elif event == "step":
            restored, is_starting = None, False
            _roll_back(steps, epochs, record["step"] - record.get("steps", 1))
            steps.append(record)
        elif event == "epoch":
            epochs = [epoch for epoch in epochs if epoch.epoch < record["epoch"]]
            epochs.append(_epoch(record))
    return steps, tuple(epochs)


def _roll_back(steps: list[Record], epochs: list[EpochReport], last: int) -> None:
    """Forget everything after the step ``last``."""
    while steps and steps[-1]["step"] > last:
        record = steps.pop()
        count = record.get("steps", 1)
        left = count - (record["step"] - last)
        if left > 0:
            steps.append(_first_steps(record, left / count) | {"step": last, "steps": left})
    while epochs and epochs[-1].step > last:
        epochs.pop()


def _first_steps(record: Record, part: float) -> Record:
    """Return the first part of a record that stands for several steps, all taken as equal."""
    samples = round(record["samples"] * part)
    return {**record, "seconds": record["seconds"] * part, "samples": samples}


def _epoch(record: Record) -> EpochReport:
    ledger = record.get("ledger") or {}
    return EpochReport(
        epoch=record["epoch"],
        step=record["step"],
        samples=ledger.get("samples", 0),
        exact=bool(ledger.get("exact", False)),
        metrics=record.get("metrics") or {},
        validation=record.get("validation") or {},
    )


def _count_samples(steps: Sequence[Record], epochs: Sequence[EpochReport]) -> int:
    """Count by the ledger for complete epochs, by step records after them.

    The rank that writes step records may die between applying a step and recording it.
    The ledger misses no step.
    """
    last = epochs[-1].step if epochs else 0
    running = sum(step["samples"] for step in steps if step["step"] > last)
    return int(sum(epoch.samples for epoch in epochs) + running)


def _final_metrics(completed: Record, epochs: Sequence[EpochReport]) -> dict[str, float]:
    """Return training metrics under their names, and those of validation after ``val_``."""
    if completed.get("metrics"):
        metrics, validation = completed["metrics"], completed.get("validation") or {}
    elif epochs:
        metrics, validation = epochs[-1].metrics, epochs[-1].validation
    else:
        return {}
    return dict(metrics) | {f"val_{name}": value for name, value in validation.items()}


def _failures(records: Sequence[Record]) -> Iterable[Failure]:
    job, began = 0, 0.0
    for record in records:
        if record["event"] == "job_started":
            job, began = job + 1, record["now"]
        elif record["event"] == "failure":
            failure = _take(Failure, record)
            after_s = record["now"] - began
            yield dataclasses.replace(failure, job=job, after_s=after_s) if job else failure


def _lines_of(record: Record) -> int:
    lines = record.get("lines")
    return lines if record["event"] == "journal_gap" and isinstance(lines, int) else 0


def _lost_lines(job: Sequence[Record], of: str) -> int:
    """Return the lines that a job has lost; each agent of it counts anew from 0."""
    told = [record for record in job if record["event"] == "output_dropped"]
    counts = [record["lines"] for record in told if record.get("of") == of]
    ends = [after < count for count, after in itertools.pairwise([*counts, 0])]
    return sum(itertools.compress(counts, ends))


def _recoveries(job: Sequence[Record]) -> Iterable[Recovery]:
    for record in job:
        if record["event"] != "recovery":
            continue
        recovery = _take(Recovery, record)
        since = _since_failure(job, record, recovery.lost)
        yield dataclasses.replace(recovery, since_failure_ms=since)


def _since_failure(job: Sequence[Record], record: Record, lost: tuple[int, ...]) -> float | None:
    """Return milliseconds from the first of the deaths to the next applied step."""
    detected = record.get("detected")
    if detected is None or record.get("next_step_ms") is None:
        return record.get("next_step_ms")
    deaths = [_death_of(worker, job, detected) for worker in lost]
    began = min([death for death in deaths if death is not None], default=detected)
    return float((detected - began) * 1000 + record["next_step_ms"])


def _death_of(worker: int, job: Sequence[Record], before: float) -> float | None:
    """Return the time of a worker's fault, else of its observed death, not after ``before``.

    A worker dies of one fault at most.  Ids may be counted anew after a relaunch, so the
    latest time is the right one.
    """
    for event in ("fault", "failure"):
        times = [
            record["now"]
            for record in job
            if record["event"] == event and record["worker"] == worker and record["now"] <= before
        ]
        if times:
            return float(times[-1])
    return None


def _relaunches(job: Sequence[Record]) -> Iterable[Relaunch]:
    for index, record in enumerate(job):
        if record["event"] != "relaunch":
            continue
        before, rest = job[:index], job[index + 1 :]
        after = list(itertools.takewhile(lambda later: later["event"] != "relaunch", rest))
        restored = _first(after, "restored")
        left = _left_off(before, is_renewal=record.get("is_renewal") is True)
        step = _first(after, "step")
        since = (step["now"] - left) * 1000 if step and left is not None else None
        yield dataclasses.replace(
            _take(Relaunch, record), restored_step=restored.get("step"), since_failure_ms=since
        )


def _left_off(before: Sequence[Record], *, is_renewal: bool) -> float | None:
    """Return the time of the stop, or of the death, after which a launch was followed."""
    last = last_of(before, "stopped" if is_renewal else "failure")
    if not last or is_renewal:
        return last.get("now")
    death = _death_of(last["worker"], before, last["now"])
    return float(last["now"]) if death is None else death


def _first(records: Sequence[Record], event: str) -> Record:
    return next((record for record in records if record["event"] == event), {})


def last_of(records: Sequence[Record], event: str) -> Record:
    """Return the newest record of an event, an empty one without any."""
    return next((record for record in reversed(records) if record["event"] == event), {})


def _all(kind: type[_Value], records: Iterable[Record], event: str) -> tuple[_Value, ...]:
    return tuple(_take(kind, record) for record in records if record["event"] == event)


def _take(kind: type[_Value], record: Record) -> _Value:
    """Build a value from the fields of a record that it knows; lists become tuples."""
    names = [known.name for known in dataclasses.fields(kind)]  # type: ignore[arg-type]
    given = {name: record[name] for name in names if name in record}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})


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
    lengths = dict.fromkeys(Bucket, 0)
    for span in spans:
        lengths[span.bucket] += span.end - span.begin
    return lengths


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
