"""The report of a run, as a value, as JSON and in words; ``summary`` makes it from a journal.

A report is only what the journal says.  How a run stands whose journal has no end is told by the
lease (``Life``).
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.runtime.evidence.repeats import describe_work
from holdfast.runtime.tools.living_job import Life


@dataclass(frozen=True, slots=True)
class CheckpointReport:
    """A committed checkpoint."""

    step: int
    seconds: float
    bytes: int
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A checkpoint that could not be written, or was found invalid at a restore."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A checkpoint that a restore gave up after so many seconds; it may be whole."""

    step: int
    reason: str
    seconds: float
    tries: int = 1

    def __str__(self) -> str:
        return f"step {self.step} could not be read for {self.seconds:.0f} s: {self.reason}"


@dataclass(frozen=True, slots=True)
class Rotten:
    """An old checkpoint that did not verify any more, its new name, and whether it was mended."""

    step: int
    reason: str
    moved_to: str | None = None
    mended: bool = False

    def __str__(self) -> str:
        aside = f"moved to {self.moved_to}" if self.moved_to else "not moved"
        fate = "mended" if self.mended else aside
        return f"step {self.step} did not verify any more, {fate}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Mended:
    """A damaged checkpoint that is whole again: ``taken`` of its ``parts`` came from ``holder``."""

    step: int
    taken: int
    parts: int
    holder: str
    bad_name: str | None = None

    def __str__(self) -> str:
        return f"step {self.step} mended: {self.taken} of {self.parts} parts from {self.holder}"


@dataclass(frozen=True, slots=True)
class NotMended:
    """The failure of a second holder to mend a checkpoint, or any checkpoint without a step."""

    reason: str
    holder: str
    step: int | None = None

    def __str__(self) -> str:
        what = "nothing" if self.step is None else f"step {self.step} not"
        return f"{what} mended from {self.holder}: {self.reason}"


@dataclass(frozen=True, slots=True)
class WrongMemory:
    """Workers whose state differed from the others'; without a majority all may be wrong."""

    step: int
    workers: tuple[int, ...]
    has_majority: bool

    def __str__(self) -> str:
        workers = ", ".join(map(str, self.workers))
        fate = "fenced" if self.has_majority else "no majority shows whose state is right"
        return f"step {self.step} differs in the memory of workers {workers}: {fate}"


@dataclass(frozen=True, slots=True)
class Struck:
    """An injected fault that struck; the names are those of a fault's address."""

    kind: str
    worker: int
    step: int
    site: str
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class Failure:
    """A worker's death, as the supervisor saw it."""

    worker: int
    cause: str
    step: int | None = None
    phase: str | None = None
    fenced: bool = False
    generation: int | None = None
    limit: str | None = None
    """The limit that it was killed for: heartbeat, stall, standstill or unkillable."""
    launch_rank: int | None = None
    core: int | None = None
    stderr: tuple[str, ...] = ()
    traceback: str = ""
    """Of the exception of its script, from the script's own first call on."""
    stacks: str = ""
    samples: dict[str, Any] | None = None
    collateral: bool = False
    """Whether it was killed together with others, and not for anything of its own."""
    job: int | None = None
    """The number of the run's job that it belonged to, from 1."""
    after_s: float | None = None
    """Its time, from the begin of that job."""


@dataclass(frozen=True, slots=True)
class Suspected:
    """A worker that did not come on for half of its limit; it may have done so afterwards."""

    worker: int
    seconds: float
    step: int
    where: str = ""
    stacks: str = ""
    samples: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Pressure:
    """A limit of the host that was about to be met, as people were told."""

    resource: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Recovery:
    """A recovery in place, in milliseconds since the survivors detected the failure.

    ``since_failure_ms`` is counted from the fault, or from the failure where none
    was injected, to the next applied step.
    """

    generation: int
    step: int
    lost: tuple[int, ...]
    survivors: tuple[int, ...]
    attempts: int = 1
    revoked_ms: float | None = None
    shrunk_ms: float | None = None
    agreed_ms: float | None = None
    adopted_ms: float | None = None
    next_step_ms: float | None = None
    since_failure_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Relaunch:
    """A job that died whole, or was renewed, and was started again.

    ``restored_step`` is ``None`` when it began from nothing; ``since_failure_ms``, for a renewal
    since its stop, is ``None`` when no step was applied any more, or neither is on record.
    """

    reason: str
    workers: tuple[int, ...]
    restored_step: int | None = None
    since_failure_ms: float | None = None
    is_renewal: bool = False


@dataclass(frozen=True, slots=True)
class EpochReport:
    """One epoch that counts; ``exact`` is whether each sample was applied exactly once."""

    epoch: int
    step: int
    samples: int
    exact: bool
    metrics: dict[str, float] = field(default_factory=dict)
    validation: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Report:
    """A run from its first job to its last record; seconds unless named otherwise.

    ``exit_code`` and ``reason`` are ``None`` while the last job goes on, or when its
    supervisor was lost.
    """

    run_id: str | None
    exit_code: int | None
    reason: str | None
    steps: int
    samples: int
    epochs: tuple[EpochReport, ...]
    metrics: dict[str, float]
    faults: tuple[Struck, ...]
    failures: tuple[Failure, ...]
    suspected: tuple[Suspected, ...]
    repeated: tuple[str, ...]
    """A sentence on each step, rank or core that kills workers again and again."""
    recoveries: tuple[Recovery, ...]
    relaunches: tuple[Relaunch, ...]
    checkpoints: tuple[CheckpointReport, ...]
    failed_checkpoints: tuple[Rejected, ...]
    rejected_checkpoints: tuple[Rejected, ...]
    skipped_checkpoints: int
    scrub_failures: tuple[Rotten, ...]
    mends: tuple[Mended, ...]
    failed_mends: tuple[NotMended, ...]
    memory_differences: tuple[WrongMemory, ...]
    jobs: int
    wall_s: float
    step_s: float
    goodput: float
    final_sha256: str | None
    pressures: tuple[Pressure, ...] = ()
    completed_step: int | None = None
    """The step that the last launch has completed; its script may go on for a while."""
    lost_events: int = 0
    """Events that the journal lacks, so that the numbers are lower bounds."""
    is_begun_again: bool = False
    """Whether the journal was removed during a job, so that it lacks all that was before."""
    lost_lines: int = 0
    """Lines of the workers and of holdfast that stdout and stderr have not taken."""
    unread_checkpoints: tuple[Unread, ...] = ()
    paused_s: float = 0.0
    """How long the whole job stood still, which is a part of the wall time."""


def to_json(report: Report) -> str:
    """Return the report as strict JSON; numbers that JSON lacks (NaN) become null."""
    return json.dumps(finite(dataclasses.asdict(report)), indent=2, allow_nan=False)


def describe_ledger(report: Report) -> str:
    """Return, in words, whether every sample of every epoch was applied exactly once."""
    if not report.epochs:
        return "none has ended"
    wrong = [str(epoch.epoch) for epoch in report.epochs if not epoch.exact]
    return f"not exact: {', '.join(wrong)}" if wrong else "every sample exactly once"


def describe_metrics(metrics: dict[str, float]) -> str:
    """Return metrics as ``name=value`` pairs."""
    return " ".join(f"{name}={value:.6g}" for name, value in metrics.items()) or "-"


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
    last = [f"step {f.step} failed, the last of {len(failed)}: {f.reason}" for f in failed[-1:]]
    rejected = [f"step {r.step} rejected: {r.reason}" for r in report.rejected_checkpoints]
    others = (
        *report.unread_checkpoints,
        *report.scrub_failures,
        *report.mends,
        *report.failed_mends,
        *report.memory_differences,
        *report.pressures,
    )
    return [*last, *rejected, *map(str, others)]


def describe_failure(failure: Failure) -> str:
    """Return the worker that died, the cause, the step and the phase."""
    where = f" after step {failure.step}" if failure.step is not None else ""
    phase = f" while {failure.phase}" if failure.phase else ""
    is_said = failure.cause.startswith("fenced")
    fenced = ", fenced" if failure.fenced and not is_said else ""
    limit = f" ({failure.limit} limit)" if failure.limit else ""
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


def describe_suspected(suspected: Suspected) -> str:
    """Return the worker that did not come on, for how long and where."""
    where = f" in {suspected.where}" if suspected.where else ""
    return (
        f"worker {suspected.worker}: no progress for {suspected.seconds:.0f} s "
        f"after step {suspected.step}{where}"
    )


def describe_evidence(failure: Failure) -> list[str]:
    """Return what is known of a death beside its cause, in lines; none if nothing is."""
    lines: list[str] = []
    if failure.samples:
        lines += ["computing", f"  {describe_work(failure.samples)}"]
    if failure.traceback:
        lines += [f"  {line}" for line in failure.traceback.splitlines()]
    if failure.stacks:
        lines += ["stacks", *failure.stacks.splitlines()]
    if failure.stderr:
        lines += ["last lines of stderr", *(f"  {line}" for line in failure.stderr)]
    return lines


def describe_ms(milliseconds: float | None) -> str:
    """Return a duration with its unit, or a dash for one that never ended."""
    return "-" if milliseconds is None else f"{milliseconds:.0f} ms"


def finite(value: Any) -> Any:
    """Return a JSON value in which numbers that JSON lacks are null."""
    if isinstance(value, dict):
        return {name: finite(member) for name, member in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(member) for member in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_LIVES = {
    Life.RUNNING: "still running",
    Life.DETACHED: "still running without a client: `holdfast attach {}` shows it",
    Life.ELSEWHERE: "moved or copied: `holdfast status` says where its job works",
    Life.ENDED: "over, and its journal does not say how; go on with `holdfast run`",
    Life.GONE: "lost with its head: go on with `holdfast run`",
    Life.ALONE: "still running, without `holdfast run`",
    Life.UNKNOWN: "still running, or lost",
}


def describe_outcome(report: Report, life: Life, run_dir: Path) -> str:
    """Return how the last job ended, in words, or whether it lives."""
    if report.exit_code is None:
        done = report.completed_step
        has_completed = "" if done is None else f"completed step {done}; "
        if life is Life.GONE and done is not None:
            return f"completed step {done}, after its head was lost"
        return has_completed + _LIVES[life].format(run_dir)
    return f"exit {report.exit_code}" + (f": {report.reason}" if report.reason else "")


def describe_journal(report: Report, life: Life) -> str:
    """Return whether the journal has every event, in words, or what it lacks."""
    events = "1 event" if report.lost_events == 1 else f"{report.lost_events} events"
    # A script without a supervisor writes neither the begin nor the end of its job.
    has_no_end = report.jobs > 0 and report.exit_code is None and life is Life.ENDED
    lacks = {
        "all that was before it was removed during a job": report.is_begun_again,
        f"{events} that could not be written": report.lost_events > 0,
        "the end of the last job": has_no_end,
    }
    named = [what for what, is_lacking in lacks.items() if is_lacking]
    if not named:
        return "whole"
    return f"lacks {', and '.join(named)}; so the numbers here are lower bounds"
