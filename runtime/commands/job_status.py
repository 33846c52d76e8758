"""The status of a job: what its journal tells, and what its head says now.

The lease names the head's socket.  Asking it changes nothing.  A head that is stopped, or whose
host is too busy, does not answer in time.  A job that has ended, or runs on another host, has none.
Then the journal says as much as it can.  It has what has happened, the head what happens now.
``job_status`` puts both together, and is pure.
"""

from __future__ import annotations

import contextlib
import shlex
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from holdfast.recovery.event import WorkerCompleted, WorkerStopped, WorldFormed
from holdfast.runtime.commands.goodput import Goodput, goodput_of
from holdfast.runtime.commands.summary import finite
from holdfast.runtime.head.living_job import JobSocket, JobStanding, ending_of, find_life
from holdfast.runtime.head.visits import HeadStatus
from holdfast.runtime.run.checkpoint_events import Checkpoint, StepCopied
from holdfast.runtime.run.entries import Entries, Entry, last_of, newest_job, of, read_on
from holdfast.runtime.run.events import Epoch, JobEnded, JobStarted, LaunchBegan, Step, StepRestored
from holdfast.runtime.run.find_run import refuse_no_run
from holdfast.runtime.run.journal import JournalReader
from holdfast.runtime.run.live_line import Pace, next_save_of
from holdfast.runtime.run.progress import (
    AFTER_TRAINING,
    CONCLUDING,
    LaunchReport,
    StepReport,
    WorkerReport,
    duration,
)
from holdfast.runtime.run.progress import phase as describe_phase
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.activity import WAITING, Activity

_MOST_EVENTS = 8
_PACE_OVER_S = 10.0


class StatusSource:
    """Looks at one run, once or again and again; reading changes nothing.

    Raises:
        UsageError: the directory holds no run, or its files cannot be read.
    """

    def __init__(self, run_dir: Path) -> None:
        self._directory = RunDirectory(run_dir)
        self._reader = JournalReader(self._directory.journal_path)
        self._socket = JobSocket(self._directory)
        self._entries: list[Entry[Any]] = []

    def poll(self, wall_s: float) -> JobStatus:
        """Return how the newest job stands now, at ``wall_s`` seconds since 1970.

        Raises:
            UsageError: the directory holds no run, or its files cannot be read.
        """
        refuse_no_run(self._directory.path)
        self._directory.load_record()  # one that makes no sense is refused
        answer = self._socket.ask()
        life, words = find_life(self._directory, answer)
        # After the look at the processes: the last record may tell of their end.
        read_on(self._directory, self._reader.read, self._entries)
        ending = ending_of(newest_job(self._entries), life, words)
        if self._socket.is_silent:
            ending = JobStanding(f"{ending.outcome}; its head does not answer", ending.is_over)
        return job_status(self._entries, ending, answer, (time.monotonic(), wall_s))

    def close(self) -> None:
        """Leave the job alone."""
        self._socket.close()


@dataclass(frozen=True, slots=True)
class LastSave:
    """The newest checkpoint of the journal, and its age in seconds."""

    step: int
    age_s: float


@dataclass(frozen=True, slots=True)
class EventLine:
    """One event; ``time`` is in seconds since 1970."""

    time: float
    text: str


@dataclass(frozen=True, slots=True)
class JobStatus:
    """How the newest job of a run stands.

    ``outcome`` says it in words; ``is_over`` is whether no process of the job is left.
    ``step`` is that of the newest word, live or from the journal.
    """

    run_id: str | None
    outcome: str
    is_over: bool
    exit_code: int | None
    script: str | None
    phase: str | None
    step: int
    launched: int
    workers: tuple[WorkerReport, ...]
    progress: StepReport | None
    steps_per_s: float
    epoch: Epoch | None
    last_save: LastSave | None
    next_save: str | None
    goodput: Goodput | None
    events: tuple[EventLine, ...]
    pid: int | None = None
    command: str = ""
    """The process that a user has started, or the head that goes on without it."""
    last_copy: LastSave | None = None
    """The newest checkpoint in the place of copies."""


def _command_of(pid: object) -> str:
    """Return the command line of a process as a user has typed it, without the interpreter."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        texts = [word.decode(errors="replace") for word in words]
        at = next((at for at, text in enumerate(texts) if Path(text).name == "holdfast"), None)
        return shlex.join(texts if at is None else ["holdfast", *texts[at + 1 :]])
    return ""


def job_status(
    entries: Entries, ending: JobStanding, answer: HeadStatus | None, now_s: tuple[float, float]
) -> JobStatus:
    """Return the status of the newest job in ``entries``, with what its head has told.

    ``now_s`` is the moment: seconds of the monotonic clock, and since 1970.
    """
    monotonic, wall = now_s
    job = newest_job(entries)
    seen = LaunchReport() if answer is None else answer.seen
    progress, phase = seen.progress, seen.phase
    pid = None if answer is None else answer.client or answer.pid
    epoch, saved = last_of(entries, Epoch), last_of(entries, Checkpoint)
    launch = last_of(job, LaunchBegan)
    copied = max(of(entries, StepCopied), key=lambda entry: entry.event.step, default=None)
    started, ended = last_of(entries, JobStarted), last_of(job, JobEnded)
    launched = 0 if launch is None else len(launch.event.workers)
    outcome = ending.outcome
    if phase == CONCLUDING and not ending.is_over:  # a script may go on for long
        outcome += f": {describe_phase(phase)}"
    return JobStatus(
        run_id=entries[-1].run_id if entries else None,
        outcome=outcome,
        is_over=ending.is_over,
        exit_code=ended and ended.event.exit_code,
        script=started and started.event.script,
        phase=phase,
        step=_journalled_step(entries) if progress is None else progress.step,
        launched=launched if answer is None else answer.launched,
        workers=seen.workers,
        progress=progress,
        steps_per_s=0.0
        if ending.is_over or phase in AFTER_TRAINING
        else pace_of(of(job, Step)).per_s,
        epoch=epoch
        and replace(
            epoch.event,
            metrics=epoch.event.metrics or {},
            validation=epoch.event.validation or {},
        ),
        last_save=saved and LastSave(saved.event.step, max(0.0, wall - saved.time)),
        last_copy=copied and LastSave(copied.event.step, max(0.0, wall - copied.time)),
        next_save=_next_save(progress, last_of(job, Checkpoint), monotonic),
        goodput=goodput_of(entries, None if ending.is_over else monotonic),
        events=told_events(entries, _MOST_EVENTS),
        pid=pid,
        command=_command_of(pid) if pid else "",
    )


def pace_of(steps: Sequence[Entry[Step]]) -> Pace:
    """Return the speed over the last seconds of steps; nothing after a relaunch."""
    pace = Pace()
    if steps:
        since = steps[-1].now - _PACE_OVER_S
        generation = steps[-1].event.generation
        for entry in steps:
            if entry.now >= since and entry.event.generation == generation:
                pace = pace.observe(entry.event.step, entry.now)
    return pace


def _journalled_step(entries: Entries) -> int:
    """Return the step that the newest launch has reached by its journal."""
    for entry in reversed(entries):
        if isinstance(
            entry.event, (Step, WorkerCompleted, WorkerStopped, StepRestored, WorldFormed)
        ):
            return entry.event.step
    return 0


def _next_save(
    progress: StepReport | None, saved: Entry[Checkpoint] | None, now: float
) -> str | None:
    """Return when the next save comes, unless it came after the agent was told of it."""
    if progress is None:
        return None
    if saved and saved.event.step == progress.next_save_step and saved.now > progress.now:
        return None
    return next_save_of(progress, now)


def told_events(entries: Entries, most: int) -> tuple[EventLine, ...]:
    """Return the newest ``most`` events that are worth a line, the newest last."""
    found: list[EventLine] = []
    for entry in reversed(entries):
        text = entry.sentence
        if text and text not in {event.text for event in found[-1:]}:  # workers tell some too
            found.append(EventLine(float(entry.time), text))
        if len(found) == most:
            break
    return tuple(reversed(found))


def to_json(status: JobStatus) -> dict[str, Any]:
    """Return the status as a JSON object, with the goodput that its parts make."""
    fields: dict[str, Any] = finite(status)
    if status.goodput is not None:
        fields["goodput"]["share"] = status.goodput.share
    return fields


_OF_STEPS = [one for one in Activity if Activity.READ <= one <= Activity.COPY]
_FOR_PEERS = {one.label for one in WAITING}
_SHOWN_FROM = 0.01
_SLOW_FROM = 0.1
"""A worker is slow for which the others wait for this part of their time."""


def _shares_of(worker: WorkerReport) -> Mapping[str, float]:
    """Return the parts of the time of its steps, the largest first; none before its first step."""
    spent = {one.label: worker.spent_s.get(one.label, 0.0) for one in _OF_STEPS}
    total = sum(spent.values())
    shares = {name: seconds / total for name, seconds in spent.items() if seconds}
    return dict(sorted(shares.items(), key=lambda found: -found[1]))


def shares_in_words(worker: WorkerReport) -> str:
    """Return the parts of the time of its steps, but for the smallest."""
    shares = _shares_of(worker).items()
    return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= _SHOWN_FROM)


def slowest_in_words(workers: Sequence[WorkerReport]) -> str:
    """Say for which worker the others wait, if they wait for long."""
    told = {worker.worker: shares for worker in workers if (shares := _shares_of(worker))}
    waits = {one: sum(shares.get(name, 0.0) for name in _FOR_PEERS) for one, shares in told.items()}
    if len(waits) < 2:
        return ""
    slowest = min(workers, key=lambda worker: waits.get(worker.worker, 2.0))
    others = statistics.fmean(waits[one] for one in waits if one != slowest.worker)
    if others - waits[slowest.worker] < _SLOW_FROM:
        return ""
    host = f" on {slowest.host}" if slowest.host else ""
    busy = next(name for name in told[slowest.worker] if name not in _FOR_PEERS)
    return (
        f"worker {slowest.worker}{host}, most of it in {busy}: the others wait for {others:.0%} of "
        f"their time, and it for {waits[slowest.worker]:.0%}"
    )


def saved_in_words(last: LastSave | None) -> str:
    """Return the newest checkpoint and its age."""
    if last is None:
        return "none yet"
    return f"step {last.step}, {duration(last.age_s)} ago"
