"""What counts of a run, told from its journal; pure.

The journal is a list of events that only grows.  So it also holds steps that do not count, because
a relaunch rolled them back.  The rules are

* a step counts if no later record takes the run back before it: a step record
  with the same or a lower number, or the first restore of a later launch;
* a job is the records from one ``job_started`` to the next; times are compared
  only within one job, because the monotonic clock is that of one boot;
* wall time is the sum over jobs: while nothing runs, nothing is lost.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.recovery.event import Event, WorkerCompleted, WorkerExited, WorkerStopped
from holdfast.runtime.commands.goodput import Bucket, goodput_of
from holdfast.runtime.run.checkpoint_events import (
    Checkpoint,
    CheckpointFailed,
    CheckpointSkipped,
    Rejected,
    Unreadable,
)
from holdfast.runtime.run.entries import Entries, completed_step, jobs_of, last_of, of
from holdfast.runtime.run.events import (
    Epoch,
    EpochLedger,
    FaultStruck,
    JobEnded,
    JobStarted,
    JournalGap,
    LaunchBegan,
    MemoryDiffers,
    OutputDropped,
    Pressure,
    Recovery,
    Relaunch,
    Step,
    StepRestored,
    Suspected,
    death_counts,
)


def summarize(entries: Entries) -> Report:
    """Return the report of a run from all lines of its journal, in their order."""
    jobs = jobs_of(entries) if of(entries, JobStarted) else []  # a journal that was removed
    steps, epochs = _what_counts(entries)
    completed = last_of(entries, WorkerCompleted)
    ended = last_of(jobs[-1], JobEnded) if jobs else None
    goodput = goodput_of(entries) if jobs else None
    deaths = [entry.event for entry in of(entries, WorkerExited)]
    computed = {
        "failures": tuple(_failures(entries)),
        "recoveries": tuple(
            replace(one.event, since_failure_ms=_since_failure_ms(job, one.event))
            for job in jobs
            for one in of(job, Recovery)
        ),
        "relaunches": tuple(relaunch for job in jobs for relaunch in _relaunches(job)),
    }
    return Report(
        run_id=entries[-1].run_id if entries else None,
        exit_code=ended and ended.event.exit_code,
        reason=ended and ended.event.reason,
        completed_step=completed_step(entries),
        steps=max([completed.event.step if completed else 0, *(step.step for step in steps[-1:])]),
        # The rank that writes steps down may die in between; the ledger of an epoch misses none.
        samples=sum(epoch.samples for epoch in epochs)
        + sum(step.samples for step in steps if step.step > (epochs[-1].step if epochs else 0)),
        epochs=epochs,
        metrics=_final_metrics(completed and completed.event, epochs),
        death_counts=death_counts((one.host, one.cause) for one in deaths if not one.collateral),
        skipped_checkpoints=len(of(entries, CheckpointSkipped)),
        jobs=len(jobs),
        wall_s=sum(_duration(job) for job in jobs),
        step_s=sum(step.seconds for step in steps),
        goodput=0.0 if goodput is None else goodput.share,
        parts_s={} if goodput is None else goodput.parts_s,
        paused_s=0.0 if goodput is None else goodput.parts_s[Bucket.PAUSED.label],
        final_sha256=completed and completed.event.sha256,
        lost_events=sum(entry.event.lines for entry in of(entries, JournalGap)),
        lost_lines=sum(map(_lost_lines, jobs)),
        **(_listed(entries) | computed),
    )


def _listed(entries: Entries) -> dict[str, Any]:
    """Return the events that the report lists as they are, by the fields that have them."""
    found: defaultdict[str, list[Event]] = defaultdict(list)
    for entry in entries:
        if entry.event.LISTED is not None:
            found[entry.event.LISTED].append(entry.event)
    return {name: tuple(events) for name, events in found.items()}


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
            case LaunchBegan() | JobStarted():
                _roll_back(steps, epochs, restored)
                restored, is_starting = None, True
            case StepRestored(step=step) if is_starting:
                restored = max(restored or 0, step)
            case Step() as step:
                restored, is_starting = None, False
                _roll_back(steps, epochs, step.first - 1)
                steps.append(step)
            case Epoch() as epoch:
                epochs = [before for before in epochs if before.epoch < epoch.epoch]
                proof = epoch.ledger or EpochLedger(samples=0)
                epochs.append(
                    EpochReport(
                        epoch.epoch,
                        epoch.step,
                        proof.samples,
                        proof.exact,
                        epoch.metrics or {},
                        epoch.validation or {},
                        epoch.seconds,
                    )
                )
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
            steps.append(replace(step, step=last, seconds=length_s, samples=samples, steps=left))
    while epochs and epochs[-1].step > last:
        epochs.pop()


def _final_metrics(
    completed: WorkerCompleted | None, epochs: Sequence[EpochReport]
) -> dict[str, float]:
    """Return training metrics under their names, and those of validation after ``val_``."""
    if completed is not None and completed.metrics:
        metrics, validation = completed.metrics, completed.validation or {}
    elif epochs:
        metrics, validation = epochs[-1].metrics, epochs[-1].validation
    else:
        return {}
    return dict(metrics) | {f"val_{name}": value for name, value in validation.items()}


def _failures(entries: Entries) -> Iterable[WorkerExited]:
    job, began = 0, 0.0
    for entry in entries:
        if isinstance(entry.event, JobStarted):
            job, began = job + 1, entry.now
        elif isinstance(entry.event, WorkerExited):
            dated = replace(entry.event, job=job, after_s=entry.now - began)
            yield dated if job else entry.event


def _lost_lines(job: Entries) -> int:
    """Return the lines that a job has lost; each agent of it counts anew from 0."""
    counts = [entry.event.lines for entry in of(job, OutputDropped)]
    ends = [after < count for count, after in itertools.pairwise([*counts, 0])]
    return sum(itertools.compress(counts, ends))


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
    for told in (of(job, FaultStruck), of(job, WorkerExited)):
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
        restored = next(iter(of(after, StepRestored)), None)
        step = next(iter(of(after, Step)), None)
        yield replace(
            entry.event,
            restored_step=restored and restored.event.step,
            since_failure_ms=None if step is None or left is None else (step.now - left) * 1000,
        )


def _left_off(before: Entries, *, is_renewal: bool) -> float | None:
    """Return the time of the stop, or of the death, after which a launch was followed."""
    if is_renewal:
        stopped = last_of(before, WorkerStopped)
        return stopped and stopped.now
    failure = last_of(before, WorkerExited)
    return failure and _death_of(failure.event.worker, before, failure.now)


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch that counts; ``exact`` is whether each sample was applied exactly once."""

    epoch: int
    step: int
    samples: int
    exact: bool
    metrics: Mapping[str, float]
    validation: Mapping[str, float]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """A run from its first job to its last record; seconds unless named otherwise.

    ``exit_code`` and ``reason`` are ``None`` while the last job goes on, or when its
    head was lost.
    """

    run_id: str | None
    exit_code: int | None
    reason: str | None
    steps: int
    samples: int
    epochs: tuple[EpochReport, ...]
    metrics: dict[str, float]
    death_counts: tuple[str, ...]
    """How many deaths have which cause on which host, but for workers killed with others."""
    skipped_checkpoints: int
    jobs: int
    wall_s: float
    step_s: float
    goodput: float
    final_sha256: str | None
    faults: tuple[FaultStruck, ...] = ()
    failures: tuple[WorkerExited, ...] = ()
    suspected: tuple[Suspected, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    relaunches: tuple[Relaunch, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    failed_checkpoints: tuple[CheckpointFailed, ...] = ()
    rejected_checkpoints: tuple[Rejected, ...] = ()
    unread_checkpoints: tuple[Unreadable, ...] = ()
    memory_differences: tuple[MemoryDiffers, ...] = ()
    pressures: tuple[Pressure, ...] = ()
    notices: tuple[Event, ...] = ()
    """Whatever else people are told of a run: a class of event needs only to name this field."""
    completed_step: int | None = None
    """The step that the last launch has completed; its script may go on for a while."""
    lost_events: int = 0
    """Events that the journal lacks, so that the numbers are lower bounds."""
    lost_lines: int = 0
    """Lines of the workers that stdout and stderr have not taken."""
    parts_s: Mapping[str, float] = field(default_factory=dict)
    """Where the wall time went; the parts add up to it."""
    paused_s: float = 0.0
    """How long the whole job stood still, which is a part of the wall time."""


def to_json(report: Report) -> str:
    """Return the report as strict JSON; numbers that JSON lacks (NaN) become null."""
    return json.dumps(finite(report), indent=2, allow_nan=False)


def finite(value: Any) -> Any:
    """Return a value as JSON has it: numbers that JSON lacks are null.

    Of an event, the fields that a report leaves out are not there.
    """
    if dataclasses.is_dataclass(value):
        hidden = value.HIDDEN if isinstance(value, Event) else ()
        names = [field.name for field in dataclasses.fields(value) if field.name not in hidden]
        value = {name: getattr(value, name) for name in names}
    if isinstance(value, Mapping):
        return {name: finite(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
