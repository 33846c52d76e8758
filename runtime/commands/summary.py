"""The report of a run, told from its journal; pure.

The journal is a list of events that only grows.  So it also holds steps that do not count,
because a relaunch rolled them back.  The rules are

* a step counts if no later record takes the run back before it: a step record
  with the same or a lower number, or the first restore of a later launch;
* a job is the records from one ``job_started`` to the next; times are compared
  only within one job, because the monotonic clock is that of one boot;
* wall time is the sum over jobs: while nothing runs, nothing is lost;
* goodput is that of `goodput_of`.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence
from typing import TypeVar

from holdfast.runtime.commands.goodput import Bucket, goodput_of
from holdfast.runtime.commands.report import (
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
from holdfast.runtime.evidence.repeats import repeated_samples, repeated_step
from holdfast.runtime.run.journal import Record, completed_step

_Value = TypeVar("_Value")


def summarize(records: Sequence[Record]) -> Report:
    """Return the report of a run from all records of its journal, in their order."""
    jobs = _split_jobs(records)
    steps, epochs = _what_counts(records)
    completed = _last(records, "completed")
    ended = _last(jobs[-1], "job_ended") if jobs else {}
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


def _split_jobs(records: Sequence[Record]) -> list[list[Record]]:
    """Cut the journal at each ``job_started``; records before the first belong to no job."""
    jobs: list[list[Record]] = []
    for record in records:
        if record["event"] == "job_started":
            jobs.append([])
        if jobs:
            jobs[-1].append(record)
    return jobs


def _duration(job: Sequence[Record]) -> float:
    ended = _last(job, "job_ended")
    return float(ended.get("now", max(record["now"] for record in job)) - job[0]["now"])


_AFTER_ALL: Record = {"event": "launch"}
_BEGINNINGS = ("launch", "job_started")


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
        before, after = job[:index], _until_relaunch(job[index + 1 :])
        restored = _first(after, "restored")
        left = _left_off(before, is_renewal=record.get("is_renewal") is True)
        step = _first(after, "step")
        since = (step["now"] - left) * 1000 if step and left is not None else None
        yield dataclasses.replace(
            _take(Relaunch, record), restored_step=restored.get("step"), since_failure_ms=since
        )


def _left_off(before: Sequence[Record], *, is_renewal: bool) -> float | None:
    """Return the time of the stop, or of the death, after which a launch was followed."""
    last = _last(before, "stopped" if is_renewal else "failure")
    if not last or is_renewal:
        return last.get("now")
    death = _death_of(last["worker"], before, last["now"])
    return float(last["now"]) if death is None else death


def _until_relaunch(records: Sequence[Record]) -> Sequence[Record]:
    for index, record in enumerate(records):
        if record["event"] == "relaunch":
            return records[:index]
    return records


def _first(records: Sequence[Record], event: str) -> Record:
    return next((record for record in records if record["event"] == event), {})


def _last(records: Sequence[Record], event: str) -> Record:
    return next((record for record in reversed(records) if record["event"] == event), {})


def _all(kind: type[_Value], records: Iterable[Record], event: str) -> tuple[_Value, ...]:
    return tuple(_take(kind, record) for record in records if record["event"] == event)


def _take(kind: type[_Value], record: Record) -> _Value:
    """Build a value from the fields of a record that it knows; lists become tuples."""
    names = [known.name for known in dataclasses.fields(kind)]  # type: ignore[arg-type]
    given = {name: record[name] for name in names if name in record}
    return kind(**{n: tuple(v) if isinstance(v, list) else v for n, v in given.items()})
