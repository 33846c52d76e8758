"""A run as reports tell of it: its journal, its record, and the words for both.

Reading changes nothing, so a job that owns the directory is not disturbed.  What it has not
written yet is not told.  How a run stands whose journal has no end is told by the lease (``Life``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.recovery.event import Event, WorkerExited
from holdfast.runtime.commands.summary import EpochReport, Report, summarize
from holdfast.runtime.errors import UsageError
from holdfast.runtime.head.living_job import JobSocket, Life, ending_of, find_life
from holdfast.runtime.run import progress
from holdfast.runtime.run.entries import (
    Entries,
    Entry,
    last_of,
    newest_job,
    read_on,
    sentence_of,
)
from holdfast.runtime.run.events import JobStarted
from holdfast.runtime.run.find_run import refuse_no_run
from holdfast.runtime.run.journal import JournalReader
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord

_MOST_SAMPLES = 20
"""So many are named of a microbatch."""


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run as it was read; ``record`` is None if ``RUN.json`` is gone or makes no sense."""

    path: Path
    entries: Entries
    report: Report
    record: RunRecord | None
    started: JobStarted | None
    life: Life
    outcome: str
    """How the last job stands, in words."""

    @staticmethod
    def of(
        path: Path, entries: Entries, record: RunRecord | None, left: tuple[Life, str]
    ) -> ReportedRun:
        """Return what the lines of a journal tell of a run, and what is ``left`` of its job."""
        report, started = summarize(entries), last_of(entries, JobStarted)
        outcome = ending_of(newest_job(entries), *left).outcome
        begun = started and started.event
        return ReportedRun(path, entries, report, record, begun, left[0], outcome)


def read_reported_run(run_dir: Path) -> ReportedRun:
    """Read the run in a directory.

    Raises:
        UsageError: the directory holds no run, or its journal cannot be read.
    """
    refuse_no_run(run_dir)
    directory = RunDirectory(run_dir)
    with contextlib.closing(JobSocket(directory)) as socket:
        left = find_life(directory, socket.ask())
    entries: list[Entry[Any]] = []
    read_on(directory, JournalReader(directory.journal_path).read, entries)
    record = None
    with contextlib.suppress(UsageError):
        record = directory.load_record()
    return ReportedRun.of(run_dir, entries, record, left)


def facts_of(run: ReportedRun) -> dict[str, str]:
    """Return what a report says of a whole run, by the names of its lines."""
    report, counts = run.report, progress.count
    wrong = [str(epoch.epoch) for epoch in report.epochs if not epoch.exact]
    ledger = f"not exact: {', '.join(wrong)}" if wrong else "every sample exactly once"
    paused = f", the whole job stood still for {report.paused_s:.0f} s" if report.paused_s else ""
    lost = "1 line was" if report.lost_lines == 1 else f"{report.lost_lines} lines were"
    saves = {
        "committed": len(report.checkpoints),
        "failed": len(report.failed_checkpoints),
        "rejected": len(report.rejected_checkpoints),
        "could not be read": len(report.unread_checkpoints),
        "skipped": report.skipped_checkpoints,
    }
    always = ("committed", "failed", "rejected")
    return {
        "run": report.run_id or "-",
        "outcome": run.outcome,
        "steps": str(report.steps),
        "samples": f"{report.samples:,}",
        "epochs": f"{len(report.epochs)} ({ledger if report.epochs else 'none has ended'})",
        "metrics": ", ".join(progress.metrics(report.metrics)) or "-",
        "wall time": f"{progress.brief(report.wall_s)} in {counts(report.jobs, 'job')}",
        "goodput": f"{report.goodput:.1%} of the wall time went into steps that count{paused}",
        "checkpoints": ", ".join(f"{n} {k}" for k, n in saves.items() if n or k in always),
        "journal": _journal(report, run.life),
        "output": f"{lost} lost, because stdout or stderr took nothing"
        if report.lost_lines
        else "whole",
        "final sha256": report.final_sha256 or "-",
    }


def _journal(report: Report, life: Life) -> str:
    """Return whether the journal has every event, in words, or what it lacks."""
    events = "1 event" if report.lost_events == 1 else f"{report.lost_events} events"
    has_no_end = report.jobs > 0 and report.exit_code is None and life is Life.ENDED
    lacks = {
        f"{events} that could not be written": report.lost_events > 0,
        "the end of the last job": has_no_end,
    }
    named = [what for what, is_lacking in lacks.items() if is_lacking]
    if not named:
        return "whole"
    return f"lacks {', and '.join(named)}; so the numbers here are lower bounds"


def metric_names(epochs: Sequence[EpochReport]) -> list[str]:
    """Return the names of all metrics, the loss first."""
    names = dict.fromkeys(name for e in epochs for name in (*e.metrics, *e.validation))
    return sorted(names, key=lambda name: name != "loss")


def metric_columns(epochs: Sequence[EpochReport]) -> dict[str, tuple[float | None, ...]]:
    """Return the values of each metric by the name that Keras gives it, one for each epoch."""
    columns = {
        prefix + name: tuple(getattr(epoch, values).get(name) for epoch in epochs)
        for name in metric_names(epochs)
        for prefix, values in (("", "metrics"), ("val_", "validation"))
    }
    return {head: column for head, column in columns.items() if set(column) != {None}}


def epoch_table(epochs: Sequence[EpochReport]) -> tuple[list[str], list[list[str]]]:
    """Return the epochs as heads and rows of texts: when each ended, and each of its metrics."""
    columns = metric_columns(epochs)
    times = ["-" if epoch.seconds is None else progress.brief(epoch.seconds) for epoch in epochs]
    rows = [
        [str(epoch.epoch), str(epoch.step), time, *map(describe_metric, values)]
        for epoch, time, *values in zip(epochs, times, *columns.values(), strict=True)
    ]
    return ["epoch", "step", "time", *columns], rows


def describe_metric(value: float | None) -> str:
    """Return a metric as the live line shows it."""
    return "-" if value is None else progress.number(value)


def describe_troubles(report: Report) -> list[str]:
    """Return a line on each trouble with checkpoints and with memory, and on what else happened."""
    failed = report.failed_checkpoints
    of_all = f" (the last of {len(failed)} that failed)" if len(failed) > 1 else ""
    others: tuple[Event, ...] = (
        *report.rejected_checkpoints,
        *report.unread_checkpoints,
        *report.memory_differences,
        *report.pressures,
        *report.notices,
    )
    return [*(sentence_of(event) + of_all for event in failed[-1:]), *map(sentence_of, others)]


def describe_failure(failure: WorkerExited) -> str:
    """Return the worker that died, the cause, the step and the phase."""
    where = f" after step {failure.step}" if failure.step is not None else ""
    phase = f" while {failure.phase}" if failure.phase else ""
    is_said = failure.cause.startswith("fenced")
    fenced = ", fenced" if failure.fenced and not is_said else ""
    # The cause names a lost host by itself.
    limit = f" ({failure.limit} limit)" if failure.limit not in (None, "host") else ""
    return f"worker {failure.worker}: {failure.cause}{where}{phase}{fenced}{limit}"


def describe_time(failure: WorkerExited) -> str:
    """Return the job of a death and the time in it."""
    if failure.job is None or failure.after_s is None:
        return "-"
    return f"job {failure.job}, {failure.after_s:.1f} s"


def describe_evidence(failure: WorkerExited) -> list[str]:
    """Return what is known of a death beside its cause, in lines; none if nothing is."""
    lines: list[str] = []
    if work := failure.samples:
        kind, shown = "validation " * work.is_validation, work.ids[:_MOST_SAMPLES]
        left = work.count - len(shown)
        ids = ", ".join(map(str, shown)) + (f" and {left} more" if left else "")
        lines += ["computing", f"  microbatch {work.microbatch}, {kind}samples {ids}"]
    if failure.traceback:
        lines += [f"  {line}" for line in failure.traceback.splitlines()]
    if failure.stacks:
        lines += ["stacks", *failure.stacks.splitlines()]
    if failure.stderr:
        lines += ["last lines of stderr", *(f"  {line}" for line in failure.stderr)]
    return lines
