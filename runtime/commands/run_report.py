"""The report of a run, as a value, as JSON and in words; ``summary`` makes it from a journal.

A report is only what the journal says.  How a run stands whose journal has no end is told by the
lease (``Life``).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.runtime.commands.living_job import Life
from holdfast.runtime.run import progress
from holdfast.runtime.run.checkpoint_events import (
    Checkpoint,
    CheckpointFailed,
    Rejected,
    Unreadable,
)
from holdfast.runtime.run.entries import Event, kind_of, words_of
from holdfast.runtime.run.events import (
    Epoch,
    Failure,
    FaultStruck,
    MemoryDiffers,
    Pressure,
    Recovery,
    Relaunch,
    Suspected,
)

_MOST_SAMPLES = 20
"""So many are named of a microbatch."""


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch that counts; ``exact`` is whether each sample was applied exactly once."""

    epoch: int
    step: int
    samples: int
    exact: bool
    metrics: Mapping[str, float] = field(default_factory=dict)
    validation: Mapping[str, float] = field(default_factory=dict)
    seconds: float | None = None

    @staticmethod
    def of(epoch: Epoch) -> EpochReport:
        """Return the end of an epoch as the report has it."""
        ledger = epoch.ledger or {}
        return EpochReport(
            epoch=epoch.epoch,
            step=epoch.step,
            samples=ledger.get("samples", 0),
            exact=bool(ledger.get("exact", False)),
            metrics=epoch.metrics or {},
            validation=epoch.validation or {},
            seconds=epoch.seconds,
        )


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
    """How many deaths have which cause on which host."""
    skipped_checkpoints: int
    jobs: int
    wall_s: float
    step_s: float
    goodput: float
    final_sha256: str | None
    faults: tuple[FaultStruck, ...] = ()
    failures: tuple[Failure, ...] = ()
    suspected: tuple[Suspected, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    relaunches: tuple[Relaunch, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    failed_checkpoints: tuple[CheckpointFailed, ...] = ()
    rejected_checkpoints: tuple[Rejected, ...] = ()
    unread_checkpoints: tuple[Unreadable, ...] = ()
    memory_differences: tuple[MemoryDiffers, ...] = ()
    pressures: tuple[Pressure, ...] = ()
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


def describe_ledger(report: Report) -> str:
    """Return, in words, whether every sample of every epoch was applied exactly once."""
    if not report.epochs:
        return "none has ended"
    wrong = [str(epoch.epoch) for epoch in report.epochs if not epoch.exact]
    return f"not exact: {', '.join(wrong)}" if wrong else "every sample exactly once"


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


def describe_checkpoints(report: Report) -> str:
    """Return the number of checkpoints, and the numbers of failed and other ones."""
    counts = {
        "committed": len(report.checkpoints),
        "failed": len(report.failed_checkpoints),
        "rejected": len(report.rejected_checkpoints),
        "could not be read": len(report.unread_checkpoints),
        "skipped": report.skipped_checkpoints,
    }
    always = ("committed", "failed", "rejected")
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n or name in always)


def describe_troubles(report: Report) -> list[str]:
    """Return a line on each trouble with checkpoints and with memory."""
    failed = report.failed_checkpoints
    of_all = f" (the last of {len(failed)} that failed)" if len(failed) > 1 else ""
    others: tuple[Event, ...] = (
        *report.rejected_checkpoints,
        *report.unread_checkpoints,
        *report.memory_differences,
        *report.pressures,
    )
    return [*(words_of(event) + of_all for event in failed[-1:]), *map(words_of, others)]


def describe_failure(failure: Failure) -> str:
    """Return the worker that died, the cause, the step and the phase."""
    where = f" after step {failure.step}" if failure.step is not None else ""
    phase = f" while {failure.phase}" if failure.phase else ""
    is_said = failure.cause.startswith("fenced")
    fenced = ", fenced" if failure.fenced and not is_said else ""
    # The cause names a lost host by itself.
    limit = f" ({failure.limit} limit)" if failure.limit not in (None, "host") else ""
    return f"worker {failure.worker}: {failure.cause}{where}{phase}{fenced}{limit}"


def describe_time(failure: Failure) -> str:
    """Return the job of a death and the time in it."""
    if failure.job is None or failure.after_s is None:
        return "-"
    return f"job {failure.job}, {failure.after_s:.1f} s"


def describe_lost_lines(report: Report) -> str:
    """Return how much of the output was lost."""
    lines = "1 line was" if report.lost_lines == 1 else f"{report.lost_lines} lines were"
    return f"{lines} lost, because stdout or stderr took nothing" if report.lost_lines else "whole"


def describe_evidence(failure: Failure) -> list[str]:
    """Return what is known of a death beside its cause, in lines; none if nothing is."""
    lines: list[str] = []
    if failure.samples:
        lines += ["computing", f"  {_describe_work(failure.samples)}"]
    if failure.traceback:
        lines += [f"  {line}" for line in failure.traceback.splitlines()]
    if failure.stacks:
        lines += ["stacks", *failure.stacks.splitlines()]
    if failure.stderr:
        lines += ["last lines of stderr", *(f"  {line}" for line in failure.stderr)]
    return lines


def _describe_work(samples: Mapping[str, Any]) -> str:
    """Return a microbatch and its samples in words."""
    of = "validation samples" if samples["is_validation"] else "samples"
    shown = samples["ids"][:_MOST_SAMPLES]
    left = samples["count"] - len(shown)
    ids = ", ".join(map(str, shown)) + (f" and {left} more" if left else "")
    return f"microbatch {samples['microbatch']}, {of} {ids}"


def describe_ms(milliseconds: float | None) -> str:
    """Return a duration with its unit, or a dash for one that never ended."""
    return "-" if milliseconds is None else progress.brief(milliseconds / 1000)


def finite(value: Any) -> Any:
    """Return a value as JSON has it: numbers that JSON lacks are null.

    Of an event, the fields that a report leaves out are not there.
    """
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    kind = kind_of(value)
    if kind is not None:
        value = {name: one for name, one in value._asdict().items() if name not in kind.hidden}
    if isinstance(value, Mapping):
        return {name: finite(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def describe_journal(report: Report, life: Life) -> str:
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
