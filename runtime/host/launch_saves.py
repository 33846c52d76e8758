"""In the head: the saves of one launch, on all its hosts.

`recovery.saves` decides.  This carries its orders to the writers of the hosts, the outcome into the
statuses of the workers, and a failure to the user.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Callable, Iterable

from holdfast.recovery.event import CheckpointCommitted, WorkerExited
from holdfast.recovery.saves import (
    CommitSave,
    MakeSpace,
    PartHeld,
    RemoveSave,
    SaveAnswered,
    SaveCoordinator,
    SaveNews,
    SaveOrder,
    Settled,
    WriteShare,
)
from holdfast.runtime.host.host_messages import HostLink, News
from holdfast.runtime.host.hosted_worker import HostedWorker
from holdfast.runtime.run.checkpoint_events import CheckpointFailed
from holdfast.runtime.run.events import Notice
from holdfast.runtime.run.journal import RecordedEvent, Records
from holdfast.runtime.saving.save_messages import Hurry, PlanSaves

_NUMBER = re.compile(r"[0-9]+")


class LaunchSaves:
    """The saves of the launch of one generation."""

    def __init__(
        self,
        generation: int,
        tell: Callable[[News], None],
        hosts: Callable[[], Iterable[HostLink]],
        workers: Callable[[], Iterable[HostedWorker]],
        failures: FailedSaves,
    ) -> None:
        """Take the way to tell an event, what lives, and the failures of the job so far.

        The head's host is the first.
        """
        self._generation = generation
        self._tell = tell
        self._hosts = hosts
        self._workers = workers
        self._decider = SaveCoordinator(generation)
        self._failures = failures
        self._end: WorkerExited | None = None

    @property
    def is_settling(self) -> bool:
        """Whether the end of the last worker waits for what is in memory."""
        return self._end is not None

    def hear(self, host: HostLink, news: SaveNews) -> None:
        """Take note of what a host tells of a save."""
        if isinstance(news, PartHeld):
            began = time.monotonic() - news.seconds
            news = dataclasses.replace(news, host=host.name, began=began)
        self._carry_out(self._decider.take(news))

    def plan(self, host: HostLink, message: PlanSaves) -> None:
        """Take note that another world saves from now on; the head's writer needs its plan."""
        if message.generation < self._generation:
            return  # of a launch that is over
        first = next(iter(self._hosts()))
        if host is not first:
            first.post(message)
        self._tell(message)
        self._carry_out(self._decider.begin_world(message.generation))

    def lose_host(self, host: HostLink) -> None:
        """Take note that a host is gone."""
        self._carry_out(self._decider.lose_host(host.name))

    def settle(self, end: WorkerExited, *, is_urgent: bool) -> None:
        """Tell the end of the last worker once what it has left in memory is on the disk.

        So a relaunch finds the newest step there.
        """
        self._end = end
        for host in self._hosts() if is_urgent else ():
            host.post(Hurry())
        self._carry_out(self._decider.settle())

    def _carry_out(self, orders: Iterable[SaveOrder]) -> None:
        for order in orders:
            match order:
                case WriteShare():
                    for host in [one for one in self._hosts() if one.name == order.host]:
                        host.post(order)
                case CommitSave() | MakeSpace() | RemoveSave():
                    next(iter(self._hosts())).post(order)
                case SaveAnswered():
                    self._answer(order)
                case Settled(step):
                    self._tell_end(step)

    def _answer(self, answer: SaveAnswered) -> None:
        """Tell all workers the outcome of their save, and the user a failure."""
        ticket, text = answer.ticket, None
        for hosted in self._workers():
            if hosted.generation == ticket.launch:
                hosted.page.answer_save(ticket.attempt, is_durable=answer.is_durable)
        if answer.is_durable:
            text = self._failures.succeeded(ticket.step)
        elif not answer.is_expected:
            failed = CheckpointFailed(ticket.step, answer.reason, ticket.generation)
            self._tell(Records((RecordedEvent.of(failed),), source="snapshot writer"))
            text = self._failures.sentence(ticket.step, answer.reason)
        if text is not None:
            self._tell(Notice(text))

    def _tell_end(self, step: int | None) -> None:
        end, self._end = self._end, None
        assert end is not None
        if step is not None:
            self._tell(CheckpointCommitted(end.worker, step))
        self._tell(end)


class FailedSaves:
    """The failures since the last save that succeeded; a reason is told in full once."""

    def __init__(self) -> None:
        self._reason = ""

    def sentence(self, step: int, reason: str) -> str:
        """Return the line of a save that has failed."""
        # Paths in it name step and attempt.
        kind = _NUMBER.sub("0", reason)
        is_known, self._reason = kind == self._reason, kind
        if is_known:
            return f"the checkpoint of step {step} failed for the same reason"
        return f"the checkpoint of step {step} failed: {reason}"

    def succeeded(self, step: int) -> str | None:
        """Take note of a save that succeeded; return the line if it ends failures."""
        had_failed, self._reason = bool(self._reason), ""
        return f"checkpoints are saved again, from step {step} on" if had_failed else None
