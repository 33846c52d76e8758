"""The progress of a job for its user: a live line on a terminal, and a line for each epoch.

It hears what the agent says.  What the training calls ``verbose`` decides: 0 shows nothing, 2
only the lines.  An epoch that is trained again after a relaunch is not told again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.runtime.progress.epoch_line import EndedEpoch
from holdfast.runtime.progress.live_line import Part, live_line
from holdfast.runtime.progress.picture import Picture
from holdfast.runtime.progress.step_report import LIVE, SILENT
from holdfast.runtime.supervisor.screen import Screen
from holdfast.runtime.system.channel import Message

Paint = Callable[[Sequence[Part]], str]
"""Gives parts their colours, for a terminal."""


class ProgressLog:
    """Draws and prints on ``screen``; without ``paint`` there is no live line."""

    def __init__(
        self,
        screen: Screen,
        paint: Paint | None = None,
        *,
        is_quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._screen = screen
        self._paint = paint
        self._is_quiet = is_quiet
        self._clock = clock
        self._picture = Picture()
        self._shown_step = -1
        self._is_drawn = False
        self._is_over = False

    @property
    def draws(self) -> bool:
        """Whether a live line stands on the terminal, or may soon; others erase it first."""
        return self._is_drawn or self._is_wanted()

    @property
    def is_after_training(self) -> bool:
        """Whether all trainings so far are complete, and only the script goes on."""
        return self._picture.is_after_training

    def launching(self, workers: int) -> None:
        """Take note of another launch."""
        self._picture = self._picture.launched(workers)

    def heard(self, message: Message) -> None:
        """Take note of a message of the agent, and show what is new."""
        kind = message.get("kind")
        if kind == "pong":
            self._picture = self._picture.seen(message)
            self._draw()
        elif kind == "worker_report":
            self._heard_report(message["report"], float(message.get("now", 0.0)))

    def end(self) -> None:
        """Remove the live line, for good."""
        self._is_over = True
        self._erase()

    def _heard_report(self, report: dict[str, Any], now: float) -> None:
        if report.get("kind") == "checkpoint":
            self._picture = self._picture.saved(report["step"], now)
        elif report.get("kind") == "epoch":
            epoch = EndedEpoch.of(report)
            if epoch is not None:
                self._print(epoch)

    def _print(self, epoch: EndedEpoch) -> None:
        if epoch.step <= self._shown_step:
            return
        self._shown_step = epoch.step
        if not self._is_quiet and epoch.verbose != SILENT:
            self._screen.print(epoch.line)

    def _draw(self) -> None:
        if not self._is_wanted():
            self._erase()
            return
        assert self._paint is not None
        self._is_drawn = True
        parts = live_line(self._picture, self._clock(), self._screen.columns)
        self._screen.draw(self._paint(parts))

    def _is_wanted(self) -> bool:
        if self._paint is None or self._is_quiet or self._is_over or not self._screen.can_draw:
            return False
        report = self._picture.report
        return report is None or report.verbose == LIVE

    def _erase(self) -> None:
        if self._is_drawn:
            self._is_drawn = False
            self._screen.draw("")
