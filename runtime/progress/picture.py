"""A run in progress as one picture, from what the agent says; a relaunch goes on with it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.progress import words
from holdfast.runtime.progress.pace import Pace
from holdfast.runtime.progress.step_report import StepReport

STARTING, TRAINING = "starting", "training"
"""Phases of a worker, as its heartbeat page calls them."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What is known of a run now; each message makes a new picture.

    ``wanted`` are the workers of the newest launch, ``living`` those that live.  ``phase`` is
    that of the worker that has come least far.
    """

    wanted: int = 0
    living: int = 0
    phase: str | None = None
    report: StepReport | None = None
    pace: Pace = dataclasses.field(default_factory=Pace)
    saved_step: int | None = None
    saved_at: float | None = None

    def launched(self, workers: int) -> Picture:
        """Return the picture of another launch, which goes on where the last one was."""
        return dataclasses.replace(self, wanted=workers, living=0, phase=STARTING)

    def seen(self, fields: Mapping[str, Any]) -> Picture:
        """Return the picture after the agent's short report (`host_report.short_report`)."""
        report = StepReport.of(fields.get("progress"))
        living, phase = fields.get("workers", self.living), fields.get("phase")
        if report is None:
            return dataclasses.replace(self, living=living, phase=phase)
        return dataclasses.replace(
            self,
            living=living,
            phase=phase,
            report=report,
            pace=self.pace.observe(report.step, report.now),
        )

    def saved(self, step: int, now: float) -> Picture:
        """Return the picture after a checkpoint was committed."""
        return dataclasses.replace(self, saved_step=step, saved_at=now)

    @property
    def is_after_training(self) -> bool:
        """Whether all workers have completed the trainings that their script has begun."""
        return self.phase in words.AFTER_TRAINING

    @property
    def left_s(self) -> float | None:
        """The seconds to the end of training at today's pace, None while that is unknown."""
        if self.report is None or self.report.steps <= self.report.step:
            return None
        return self.pace.seconds_for(self.report.steps - self.report.step)

    def next_save(self, now: float) -> str | None:
        """Return when the next checkpoint comes, in words; a moment counts before a step."""
        return None if self.report is None else next_save_of(self.report, now)


def next_save_of(report: StepReport, now: float) -> str | None:
    """Return when the next checkpoint comes, in words, None if it is unknown."""
    if report.next_save_at is not None:
        return f"in {words.duration(report.next_save_at - now)}"
    return None if report.next_save_step is None else f"at step {report.next_save_step}"
