"""The live line of a run: its words, as many as fit into a terminal, and what they are made of.

A `Picture` is the run as the agent's reports tell it, and a relaunch goes on with it.  `Pace` is
the speed of its training over the last seconds.

Each part of the line has a rank.  A narrow terminal loses the parts of the highest ranks first.
A part whose words change keeps its room, so no other part comes and goes with it.
Colours are not decided here: a part has a style, and who draws it knows what that means.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from holdfast.runtime.run import progress
from holdfast.runtime.run.events import Epoch
from holdfast.runtime.run.progress import LaunchReport, StepReport

_MEMORY_S = 10.0
"""A look that is so old counts 1/e of a new one: smooth enough to read, and soon right again."""

STARTING, TRAINING, STOPPING = "starting", "training", "stopping"
"""Phases of a worker, as its status calls them, and that of a job that was asked to stop."""

GAP = "  "
_BAR_CELLS, _NARROW_BAR_CELLS = 20, 10
_WIDE_COLUMNS = 100
_RATE, _LEFT, _METRIC, _SAVE = len("10.0 steps/s"), len("12:45 left"), len("10.3100"), 16
"""The rooms of words that change; longer ones are rare."""


def live_line(picture: Picture, now: float, columns: int) -> tuple[Part, ...]:
    """Return the parts of the line at the monotonic second ``now`` that fit into ``columns``."""
    cells = _BAR_CELLS if columns >= _WIDE_COLUMNS else _NARROW_BAR_CELLS
    return fitting(tuple(_parts(picture, now, cells)), columns)


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


def _parts(picture: Picture, now: float, cells: int) -> Iterator[Part]:
    report = picture.report
    if report is None:
        phase = picture.phase or STARTING
        if picture.imports and not picture.living:
            phase = f"importing {picture.imports}"
        yield Part(STOPPING if picture.is_stopping else phase, 0, "phase")
        yield _workers(picture)
        return
    if report.stage > 1:
        yield Part(f"fit {report.stage}", 9, "quiet")
    yield Part(f"epoch {report.epoch}/{report.epochs}", 0, "epoch")
    share = report.step_of_epoch / report.steps_per_epoch if report.steps_per_epoch else 0.0
    yield Part(" " * cells, 5, "bar", done=min(1.0, share))
    of = f"/{report.steps_per_epoch}" if report.steps_per_epoch else ""
    yield Part(f"{report.step_of_epoch:>{max(0, len(of) - 1)}}{of}", 2)
    yield from _pace(picture, report)
    ranks = itertools.chain((3, 8, 9), itertools.count(12))  # the loss and two more stay longest
    for rank, text in zip(ranks, progress.metrics(report.metrics), strict=False):
        name, _, number = text.rpartition(" ")
        yield Part(f"{name} {number:<{_METRIC}}", rank, "metric")
    yield _workers(picture)
    next_save = next_save_of(report, now)
    if next_save is not None:
        yield Part(f"{f'save {next_save}':<{_SAVE}}", 11, "quiet")


def _pace(picture: Picture, report: StepReport) -> Iterator[Part]:
    """Yield the speed and what is left; or in their place what is done instead of training."""
    if picture.is_stopping or picture.phase not in (None, TRAINING):
        room = _RATE + (len(GAP) + _LEFT) * bool(report.steps)
        phase = STOPPING if picture.is_stopping else progress.phase(str(picture.phase))
        yield Part(f"{phase:<{room}}", 1, "phase")
        return
    per_s, left_s = picture.pace.per_s, picture.left_s
    yield Part(f"{progress.rate(per_s) if per_s else '':>{_RATE}}", 4)
    if report.steps:
        left = "" if left_s is None else f"{progress.duration(left_s)} left"
        yield Part(f"{left:>{_LEFT}}", 7)


def _workers(picture: Picture) -> Part:
    """Return the workers that live; fewer than were launched are worth a second look."""
    if picture.living == picture.wanted:
        return Part(progress.count(picture.wanted, "worker"), 10, "quiet")
    style = "quiet" if picture.phase == STARTING else "loss"
    return Part(f"{picture.living} of {progress.count(picture.wanted, 'worker')}", 6, style)


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
    printed_step: int = 0
    """That of the newest epoch that this launch has printed: no earlier step is shown then."""
    is_stopping: bool = False
    imports: str = ""
    """What the first workers wait for, in a word; empty once it is imported."""

    def launched(self, workers: int) -> Picture:
        """Return the picture of another launch, which goes on where the last one was."""
        return dataclasses.replace(self, wanted=workers, living=0, phase=STARTING, printed_step=0)

    def seen(self, told: LaunchReport) -> Picture:
        """Return the picture after what the agent has told of the launch."""
        found = dataclasses.replace(self, living=told.living, phase=told.phase)
        report = told.progress
        if report is None or report.step < self.printed_step:
            return found
        pace = self.pace.observe(report.step, report.now)
        return dataclasses.replace(found, report=report, pace=pace)

    def printed(self, ended: Epoch) -> Picture:
        """Return the picture after the end of an epoch was printed, which no look has shown yet."""
        report = self.report
        if report is None or report.step >= ended.step:
            return self
        report = dataclasses.replace(
            report,
            step=ended.step,
            epoch=ended.epoch,
            step_of_epoch=report.steps_per_epoch,
            metrics=ended.metrics or report.metrics,
        )
        return dataclasses.replace(self, report=report, printed_step=ended.step)

    @property
    def is_after_training(self) -> bool:
        """Whether all workers have completed the trainings that their script has begun."""
        return self.phase in progress.AFTER_TRAINING

    @property
    def left_s(self) -> float | None:
        """The seconds to the end of training at today's pace, None while that is unknown."""
        if self.report is None or self.report.steps <= self.report.step:
            return None
        left = self.report.steps - self.report.step
        return left / self.pace.per_s if self.pace.per_s else None
