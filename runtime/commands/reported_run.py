"""A run as a report tells of it: its journal, its record, and what both mean.

Reading changes nothing, so a job that owns the directory is not disturbed.  What it has not
written yet is not told.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.runtime.commands.living_job import LIVES, JobSocket, Life, ending_of, find_life
from holdfast.runtime.commands.run_report import Report
from holdfast.runtime.commands.summary import Entries, newest_job, summarize
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.run import progress
from holdfast.runtime.run.entries import Entry, last_of, read_on
from holdfast.runtime.run.events import JobStarted
from holdfast.runtime.run.find_run import refuse_no_run
from holdfast.runtime.run.journal import JournalReader
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord


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

    @property
    def name(self) -> str:
        """The name of its script, else of its directory."""
        script = self.started.script if self.started else None
        return (script or str(self.path.absolute())).rpartition("/")[2]

    @property
    def state(self) -> str:
        """One word on how it stands: complete, running, stopped, failed or lost."""
        code = self.report.exit_code
        if code is None:
            return "running" if self.life in LIVES else "lost"
        words = {int(ExitCode.DONE): "complete", int(ExitCode.STOPPED_EARLY): "stopped"}
        return words.get(code, "failed")

    @property
    def speed(self) -> str:
        """How many samples a second the steps took that count."""
        report = self.report
        return f"{report.samples / report.step_s:,.0f}" if report.step_s else "-"

    @property
    def options(self) -> list[tuple[str, str]]:
        """What the run was asked for, and what its bits depend on, as names and texts."""
        rows: list[tuple[str, object]] = []
        if self.started is not None:
            started = self.started
            rows += [
                ("script", started.script),
                ("arguments", " ".join(started.argv or ())),
                ("workers", started.workers),
                ("spares", started.spares),
                ("hosts", " ".join(started.hosts or ())),
                *(option.partition(" ")[::2] for option in started.options or ()),
            ]
        if self.record is not None:
            record = self.record
            rows += [
                ("seed", record.seed),
                ("microbatches", record.microbatches),
                ("threads of a worker", record.threads),
                *(item for item in record.numerics.items() if item[0] != "threads"),
                ("script sha256", record.script_sha256),
            ]
        return [(name, str(value)) for name, value in rows if value not in (None, "")]

    @property
    def verdict(self) -> str:
        """How the run stands in one sentence, with what it has done."""
        report, counts = self.report, progress.count
        steps = f"{report.steps:,} {'step' if report.steps == 1 else 'steps'}"
        done = f"{steps} in {counts(len(report.epochs), 'epoch')}"
        if self.started is not None:
            done += f" on {counts(self.started.workers, 'worker')}"
        deaths = counts(len(report.failures), "death") + " of a worker" if report.failures else ""
        ways = [
            f"{len(report.recoveries)} recovered in place" if report.recoveries else "",
            counts(len(report.relaunches), "relaunch", "relaunches") if report.relaunches else "",
        ]
        came = ", ".join(way for way in ways if way)
        survived = f"; {deaths}" + (f" ({came})" if came else "") if deaths else "; no worker died"
        if self.state == "complete":
            return f"{done}{survived}."
        return f"{self.outcome}. {done}{survived}."


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
