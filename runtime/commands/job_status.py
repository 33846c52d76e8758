"""How a job stands, from its journal and from what its agent says; pure.

The journal has what has happened, the agent what happens now.  A job that has ended, or runs
on another host, has no agent to ask: then the journal says as much as it can.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.commands.event_words import ToldEvent, told_events
from holdfast.runtime.commands.goodput import Goodput, goodput_of
from holdfast.runtime.commands.report import finite
from holdfast.runtime.progress.epoch_line import EndedEpoch
from holdfast.runtime.progress.host_report import WorkerReport
from holdfast.runtime.progress.pace import Pace
from holdfast.runtime.progress.picture import next_save_of
from holdfast.runtime.progress.step_report import StepReport
from holdfast.runtime.progress.words import AFTER_TRAINING, CONCLUDING, phase
from holdfast.runtime.run.journal import Record

MOST_EVENTS = 8
_PACE_OVER_S = 10.0


@dataclass(frozen=True, slots=True)
class LastSave:
    """The newest checkpoint of the journal, and its age in seconds.

    ``place`` is where it is, None for the run directory.
    """

    step: int
    age_s: float
    place: str | None = None


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What the agent said; ``now`` is its monotonic second."""

    now: float
    phase: str | None
    workers: tuple[WorkerReport, ...]
    launched: int
    progress: StepReport | None

    @staticmethod
    def of(message: Mapping[str, Any]) -> AgentAnswer:
        """Return the contents of a ``status`` message, without what makes no sense."""
        launch = message.get("launch") or {}
        workers = map(WorkerReport.of, message.get("workers") or ())
        return AgentAnswer(
            now=float(message["now"]),
            phase=message.get("phase"),
            workers=tuple(worker for worker in workers if worker is not None),
            launched=len(launch.get("workers", ())),
            progress=StepReport.of(message.get("progress")),
        )


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
    epoch: EndedEpoch | None
    last_save: LastSave | None
    next_save: str | None
    goodput: Goodput | None
    events: tuple[ToldEvent, ...]


@dataclass(frozen=True, slots=True)
class Ending:
    """How the job stands, as the lease and the end of the journal tell it."""

    outcome: str
    is_over: bool


def job_status(
    records: Sequence[Record],
    ending: Ending,
    answer: AgentAnswer | None,
    now_s: tuple[float, float],
) -> JobStatus:
    """Return the status of the newest job in ``records``, which are all sound.

    ``now_s`` is the moment: seconds of the monotonic clock, and since 1970.
    """
    monotonic, wall = now_s
    job = newest_job(records)
    progress = None if answer is None else answer.progress
    steps = [record for record in job if record["event"] == "step"]
    trains = not ending.is_over and (answer is None or answer.phase not in AFTER_TRAINING)
    epoch = _last(records, "epoch")
    return JobStatus(
        run_id=records[-1].get("run_id") if records else None,
        outcome=_outcome(ending, answer),
        is_over=ending.is_over,
        exit_code=_last(job, "job_ended").get("exit_code"),
        script=_last(records, "job_started").get("script"),
        phase=None if answer is None else answer.phase,
        step=_journalled_step(records) if progress is None else progress.step,
        launched=_launched(job) if answer is None else answer.launched,
        workers=() if answer is None else answer.workers,
        progress=progress,
        steps_per_s=pace_of(steps).per_s if trains else 0.0,
        epoch=EndedEpoch.of(epoch) if epoch else None,
        last_save=_last_save(records, wall),
        next_save=_next_save(progress, _last(job, "checkpoint"), monotonic),
        goodput=goodput_of(records, None if ending.is_over else monotonic),
        events=told_events(records, MOST_EVENTS),
    )


def _outcome(ending: Ending, answer: AgentAnswer | None) -> str:
    """Return how the job stands; a script may go on for long after its trainings are complete."""
    if ending.is_over or answer is None or answer.phase != CONCLUDING:
        return ending.outcome
    return f"{ending.outcome}: {phase(CONCLUDING)}"


def newest_job(records: Sequence[Record]) -> Sequence[Record]:
    """Return the records from the last ``job_started`` on; all of them without one."""
    for index in reversed(range(len(records))):
        if records[index]["event"] == "job_started":
            return records[index:]
    return records


def pace_of(steps: Sequence[Record]) -> Pace:
    """Return the speed over the last seconds of step records; nothing after a relaunch."""
    pace = Pace()
    if steps:
        since = steps[-1]["now"] - _PACE_OVER_S
        generation = steps[-1]["generation"]
        for record in steps:
            if record["now"] >= since and record["generation"] == generation:
                pace = pace.observe(record["step"], record["now"])
    return pace


def to_json(status: JobStatus) -> dict[str, Any]:
    """Return the status as a JSON object, with the goodput that its parts make."""
    fields = dataclasses.asdict(status)
    if status.goodput is not None:
        fields["goodput"]["share"] = status.goodput.share
    plain: dict[str, Any] = finite(fields)
    return plain


def _journalled_step(records: Sequence[Record]) -> int:
    """Return the step that the newest launch has reached by its records."""
    for record in reversed(records):
        if record["event"] in ("step", "completed", "stopped", "restored", "world"):
            return int(record["step"])
    return 0


def _launched(job: Sequence[Record]) -> int:
    return len(_last(job, "launch").get("workers", ()))


def _last_save(records: Sequence[Record], wall: float) -> LastSave | None:
    saves = [record for record in records if record["event"] in ("checkpoint", "drained")]
    record = _last(saves, "checkpoint")
    if not record:
        return None
    has_drained = saves[-1]["event"] == "drained" and saves[-1].get("step") == record["step"]
    place = None if has_drained else record.get("place")
    return LastSave(record["step"], max(0.0, wall - record["time"]), place)


def _next_save(progress: StepReport | None, saved: Record, now: float) -> str | None:
    """Return when the next save comes, unless it came after the agent was told of it."""
    if progress is None:
        return None
    if saved and saved["step"] == progress.next_save_step and saved["now"] > progress.now:
        return None
    return next_save_of(progress, now)


def _last(records: Sequence[Record], event: str) -> Record:
    return next((record for record in reversed(records) if record["event"] == event), {})
