"""The live line of a run: its words, as many as fit into a terminal, and what they are made of.

A `Picture` is the run as the agent's reports tell it, and a relaunch goes on with it.  `Pace` is
the speed of its training over the last seconds.

Each part of the line has a rank.  A narrow terminal loses the parts of the highest ranks first.
Colours are not decided here: a part has a style, and who draws it knows what that means.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.runtime.run import progress
from holdfast.runtime.run.progress import StepReport

_MEMORY_S = 10.0
"""A look that is so old counts 1/e of a new one: smooth enough to read, and soon right again."""

STARTING, TRAINING = "starting", "training"
"""Phases of a worker, as its status calls them."""

GAP = "  "
_BAR_CELLS = 20


def live_line(picture: Picture, now: float, columns: int) -> tuple[Part, ...]:
    """Return the parts of the line at the monotonic second ``now`` that fit into ``columns``."""
    return fitting(tuple(_parts(picture, now)), columns)


def fitting(parts: Sequence[Part], columns: int) -> tuple[Part, ...]:
    """Return the parts that fit, in their order; one word always stays, and may be cut."""
    kept = list(parts)
    while len(kept) > 1 and _width(kept) > columns:
        kept.remove(max(kept, key=lambda part: part.rank))
    if kept and _width(kept) > columns:
        return (Part(kept[0].text[: max(0, columns)], kept[0].rank, kept[0].style),)
    return tuple(kept)


def _width(parts: Sequence[Part]) -> int:
    return sum(progress.columns(part.text) for part in parts) + len(GAP) * max(0, len(parts) - 1)


def _parts(picture: Picture, now: float) -> Iterator[Part]:
    report = picture.report
    if report is None:
        yield Part(picture.phase or STARTING, 0, "phase")
        yield _workers(picture)
        return
    if report.stage > 1:
        yield Part(f"fit {report.stage}", 8, "quiet")
    yield Part(f"epoch {report.epoch}/{report.epochs}", 0, "epoch")
    yield Part(" " * _BAR_CELLS, 10, "bar", done=_share(report))
    of = f"/{report.steps_per_epoch}" if report.steps_per_epoch else ""
    yield Part(f"{report.step_of_epoch}{of}", 2)
    if picture.phase not in (None, TRAINING):
        yield Part(progress.phase(str(picture.phase)), 1, "phase")
    if picture.pace.per_s:
        yield Part(progress.rate(picture.pace.per_s), 4)
    if picture.left_s is not None:
        yield Part(f"{progress.duration(picture.left_s)} left", 6)
    ranks = itertools.chain((3, 7, 8), itertools.count(11))  # the loss and two more stay longest
    for rank, text in zip(ranks, progress.metrics(report.metrics), strict=False):
        yield Part(text, rank, "metric")
    yield _workers(picture)
    next_save = next_save_of(report, now)
    if next_save is not None:
        yield Part(f"save {next_save}", 9, "quiet")


def _workers(picture: Picture) -> Part:
    """Return the workers that live; fewer than were launched are worth a second look."""
    if picture.living == picture.wanted:
        return Part(progress.count(picture.wanted, "worker"), 9, "quiet")
    style = "quiet" if picture.phase == STARTING else "loss"
    return Part(f"{picture.living} of {progress.count(picture.wanted, 'worker')}", 5, style)


def _share(report: StepReport) -> float:
    if not report.steps_per_epoch:
        return 0.0
    return min(1.0, report.step_of_epoch / report.steps_per_epoch)


def next_save_of(report: StepReport, now: float) -> str | None:
    """Return when the next checkpoint comes, in words; a moment counts before a step."""
    if report.next_save_at is not None:
        return f"in {progress.duration(report.next_save_at - now)}"
    return None if report.next_save_step is None else f"at step {report.next_save_step}"


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the line; ``done`` is the share of a bar that is full, None for words."""

    text: str
    rank: int
    style: str = "plain"
    done: float | None = None


@dataclass(frozen=True, slots=True)
class Pace:
    """Steps per second, 0 while unknown; each look makes a new pace."""

    per_s: float = 0.0
    _step: int | None = None
    _now: float = 0.0

    def observe(self, step: int, now: float) -> Pace:
        """Return the pace after ``step`` was committed by ``now``, seconds of one clock.

        A run that was taken back to an earlier step is counted anew from there.
        """
        if self._step is None or step < self._step or now < self._now:
            return Pace(self.per_s, step, now)
        passed_s = now - self._now
        if step == self._step or passed_s <= 0:
            return self
        measured = (step - self._step) / passed_s
        share = 1.0 if not self.per_s else 1 - math.exp(-passed_s / _MEMORY_S)
        return Pace(self.per_s + share * (measured - self.per_s), step, now)

    def seconds_for(self, steps: int) -> float | None:
        """Return the seconds that so many steps take, None while that is unknown."""
        return steps / self.per_s if self.per_s else None


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
        """Return the picture after the agent's short report (`progress.short_report`)."""
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
        return self.phase in progress.AFTER_TRAINING

    @property
    def left_s(self) -> float | None:
        """The seconds to the end of training at today's pace, None while that is unknown."""
        if self.report is None or self.report.steps <= self.report.step:
            return None
        return self.pace.seconds_for(self.report.steps - self.report.step)
