"""How far a training is: what a worker tells of it, what its agent says, and how people read it.

The first worker writes a `StepReport` into its status a few times a second, and its agent
reads it there.  Nobody waits for anybody, and no message is queued.  So the answer of the agent
is there while workers compute, and while no client lives.  Only the end of an epoch is a
message, because none may be lost (`events.Epoch`).
"""

from __future__ import annotations

import dataclasses
import json
import math
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.runtime.system.codec import encode, from_plain
from holdfast.runtime.system.worker_status import MOST_PROGRESS_BYTES

CONCLUDING = "concluding"

AFTER_TRAINING = (CONCLUDING, "leaving")
"""Phases of a worker whose trainings are complete, and whose script may still go on."""

SILENT, LIVE, LINES = range(3)
"""The values of Keras's ``verbose``: nothing, a line that moves, a line for each epoch."""

UNKNOWN = 0
"""Steps of a training that goes on until its data end, or until a callback ends it."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """The progress of a training at ``now``, in seconds of the host's monotonic clock.

    Epochs count from 1, and so do stages: the trainings of a script.  ``steps`` and ``epochs``
    are those that the script asks for; it may stop before them, and steps may be unknown.
    ``metrics`` are those of the epoch so far.  A next save is known by its step, by its moment,
    or by both: then the earlier one counts.
    """

    now: float
    step: int
    steps: int
    epoch: int
    epochs: int
    step_of_epoch: int
    steps_per_epoch: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    verbose: int = LIVE
    stage: int = 1
    next_save_step: int | None = None
    next_save_at: float | None = None

    def encode(self) -> bytes:
        """Return the report as JSON that fits into a status; it loses metrics if need be.

        The loss comes first, and stays longest.
        """
        metrics = list(self.metrics.items())
        while True:
            content = encode(dataclasses.replace(self, metrics=dict(metrics)))
            if len(content) <= MOST_PROGRESS_BYTES:
                return content
            metrics = metrics[: len(metrics) // 2]

    @staticmethod
    def decode(content: bytes) -> StepReport | None:
        """Return the report that ``encode`` wrote, None if a field is missing or makes no sense."""
        try:
            found = from_plain(StepReport, json.loads(content), allows_more=True)
        except ValueError:  # empty, or rewritten while it was read
            return None
        steps = (found.step, found.steps, found.step_of_epoch, found.steps_per_epoch)
        others = (found.epoch, found.epochs, found.stage, found.verbose, found.next_save_step or 0)
        moments = (found.now, found.next_save_at or 0.0)
        return found if min(*steps, *others) >= 0 and all(map(math.isfinite, moments)) else None

    def by_clock(self, ahead_s: float) -> StepReport:
        """Return the report by a clock that is so many seconds ahead of that of its host."""
        at = self.next_save_at
        return dataclasses.replace(
            self, now=self.now + ahead_s, next_save_at=None if at is None else at + ahead_s
        )


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """One worker; ``silent_s`` is how long its heartbeat has stood still, None if unwatched.

    ``standing_s`` is how long all have waited for it, at ``where`` in its code; None if they
    have not.  ``host`` is the name of its host, empty if the job has one.  ``spent_s`` is what it
    has spent on each activity that has ended.
    """

    worker: int
    pid: int | None
    phase: str
    step: int
    generation: int
    resident_bytes: int | None
    silent_s: float | None
    standing_s: float | None = None
    where: str = ""
    host: str = ""
    spent_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """How far a launch is; ``workers`` only if somebody has asked for each of them.

    The phase is that of the worker that has come least far.
    """

    progress: StepReport | None = None
    living: int = 0
    phase: str | None = None
    workers: tuple[WorkerReport, ...] = ()


def number(value: float) -> str:
    """Return a metric with four decimals; a small one with four digits, as Keras shows it."""
    if not math.isfinite(value) or value == 0 or 1e-3 < abs(value) < 1e7:
        return f"{value:.4f}"
    return f"{value:.4e}"


def metrics(values: Mapping[str, float], prefix: str = "") -> list[str]:
    """Return each metric as ``name: value``, the loss first; a name stays in its line."""
    names = sorted(values, key=lambda name: name != "loss")
    return [f"{prefix}{_printable(name)}: {number(values[name])}" for name in names]


def _printable(name: str) -> str:
    """Return a name that a script has chosen without what would move the cursor."""
    return "".join(letter if letter.isprintable() else " " for letter in name)


def phase(label: str) -> str:
    """Return the phase of a worker as people read it."""
    return "script after training" if label == CONCLUDING else label


def columns(text: str) -> int:
    """Return the columns that ``text`` takes on a terminal (UAX 11: some letters take two)."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def rate(per_s: float) -> str:
    """Return steps per second; of slow steps the seconds that one takes."""
    if per_s < 1:
        return f"{1 / per_s:.1f} s/step"
    return f"{per_s:.1f} steps/s" if per_s < 100 else f"{per_s:.0f} steps/s"


def duration(seconds: float) -> str:
    """Return seconds as ``12 s``, ``3:05`` or ``2:10:00``."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def brief(seconds: float) -> str:
    """Return a short time as ``41 ms`` or ``3.2 s``, and a longer one like ``duration``."""
    if seconds < 0.9995:
        return f"{1000 * max(0.0, seconds):.0f} ms"
    return f"{seconds:.1f} s" if seconds < 59.95 else duration(seconds)


def memory(size_bytes: float) -> str:
    """Return bytes with a unit and about three digits, as ``311 MiB`` or ``4.2 GiB``."""
    import humanize  # who shows no size does not wait 40 ms for it

    number, unit = humanize.naturalsize(size_bytes, binary=True).split()
    if unit.startswith("Byte"):
        return f"{number} B"
    return f"{number if float(number) < 100 else round(float(number))} {unit}"


def count(many: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun."""
    return f"{many} {noun}" if many == 1 else f"{many} {plural or noun + 's'}"
