"""The journal records of the training loop: steps, epochs, worlds and recoveries.

All workers have the same records, so only rank 0 of the world writes them.  Steps that are
committed within half a second are written together.  If rank 0 dies before that,
the next rank 0 writes the records that may be missing.  Readers take the last of equal
records.

A journal must not grow by a line for each step of a month.  After the first five minutes of a
launch one line stands for all steps of a while.  That is a thousandth of the launch so far, and at
most ten seconds.

Rank 0 also tells the agent of each epoch, for the line that people read.  The next rank 0
tells the last one again: who shows it shows it once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

from holdfast.recovery.event import Event, WorldFormed
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.world import World
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.run.events import Epoch, EpochLedger, Recovery, Step
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.worker.context import WorkerContext

_TOGETHER_S = 0.5
"""A record costs 60 us when the caches are cold, 1 % of a step of 6 ms."""
_EACH_STEP_S = 300.0
_PART_OF_LAUNCH = 0.001
_LONGEST_TOGETHER_S = 10.0

_Commit: TypeAlias = tuple[Step | Epoch, float]
"""The record of a commit, and its moment."""


class LoopRecords:
    """Journal entries of one worker's training loop.

    ``epochs`` and ``verbose``, which is Keras's, are shown with each epoch, if they are known.
    """

    def __init__(
        self,
        context: WorkerContext,
        membership: Membership,
        epochs: int | None = None,
        verbose: int | None = None,
    ) -> None:
        self._context = context
        self._membership = membership
        self._epochs, self._verbose = epochs, verbose
        self._told_epoch: Epoch | None = None
        self._made = self._began = self._epoch_began = time.monotonic()
        self._witnessed = witnessed_s()
        self._recovery: Recovery | None = None
        """A repair whose end, the next applied update, is still to come."""
        self._detected = 0.0
        """When the failure was detected that it mends."""
        self._latest: deque[_Commit] = deque()
        self._unwritten: deque[_Commit] = deque()
        self._written = 0.0
        self._was_first = membership.is_first
        self.longest_step_s = 0.0
        """The seconds of the longest update so far, without those of a repair or a pause."""

    def transaction_began(self) -> None:
        """Start the clock of the current transaction; an attempt that fails does not count."""
        self._began, self._witnessed = time.monotonic(), witnessed_s()

    def joined(self, cursor: Cursor) -> None:
        """Record the world that is about to train, and records that a dead rank 0 may have lost."""
        was_first, self._was_first = self._was_first, self._membership.is_first
        if self._was_first and not was_first:
            self._unwritten.extend(self._latest)
            self._tell_epoch()
        world = self._membership.world
        formed = WorldFormed(world.generation, world.workers, cursor.step, world.capacity)
        self._context.report(formed)
        self.note(formed)

    def stepped(self, cursor: Cursor, epoch: int, samples: int) -> None:
        """Record an applied update, and the recovery that it ended."""
        now = time.monotonic()
        if self._recovery is not None:
            recovery, self._recovery = self._recovery, None
            next_step_ms = self._ms_until(now)
            self.note(replace(recovery, step=cursor.step, next_step_ms=next_step_ms))
        seconds = round(now - self._began, 6)
        self.longest_step_s = max(self.longest_step_s, witnessed_s() - self._witnessed)
        step = Step(
            step=cursor.step,
            epoch=epoch,
            seconds=seconds,
            samples=samples,
            generation=self._membership.world.generation,
        )
        self._keep(step)

    def ended_epoch(
        self,
        epoch: int,
        cursor: Cursor,
        metrics: Mapping[str, float],
        validation: Mapping[str, float] | None,
    ) -> None:
        """Record an epoch's metrics and the proof that it used every sample once; tell of it."""
        began, self._epoch_began = self._epoch_began, time.monotonic()
        ledger = EpochLedger(cursor.ledger.samples, f"{cursor.ledger.fingerprint:016x}", exact=True)
        ended = Epoch(
            epoch=epoch,
            step=cursor.step,
            metrics=_plain(metrics),
            validation=None if validation is None else _plain(validation),
            seconds=round(self._epoch_began - began, 3),
            epochs=self._epochs,
            verbose=self._verbose,
        )
        self._told_epoch = ended
        generation = self._membership.world.generation
        self._keep(replace(ended, ledger=ledger, generation=generation))
        if self._membership.is_first:
            self.flush()
            self._tell_epoch()

    def world_changed(
        self, before: World, detected: float, phases: tuple[float, float, float], attempts: int
    ) -> None:
        """Keep the facts of a recovery until the next update is applied.

        ``phases`` are the ends of those of `Membership.repair`.
        """
        revoked, shrunk, agreed = phases
        after = self._membership.world
        lost: tuple[int, ...] = tuple(
            worker for worker in before.workers if worker not in after.workers
        )
        if self._recovery is None:
            self._detected = detected
        else:  # a second death before the first recovery ended
            lost = self._recovery.lost + lost
        agreed_ms = self._ms_until(agreed)
        self._recovery = Recovery(
            generation=after.generation,
            step=0,
            lost=lost,
            survivors=tuple(after.workers),
            attempts=attempts,
            detected=self._detected,
            revoked_ms=self._ms_until(revoked),
            shrunk_ms=self._ms_until(shrunk),
            agreed_ms=agreed_ms,
            adopted_ms=agreed_ms,
        )

    def _ms_until(self, moment: float) -> float:
        return round((moment - self._detected) * 1000, 3)

    def adopted(self) -> None:
        """Note that the orphans have owners and all workers have the newest state."""
        if self._recovery is not None:
            adopted_ms = self._ms_until(time.monotonic())
            self._recovery = replace(self._recovery, adopted_ms=adopted_ms)

    def note(self, event: Event) -> None:
        """Record an event that all workers know."""
        if self._membership.is_first:
            self.flush()
            self._context.journal.record(event.within(self._membership.world.generation))

    def flush(self) -> None:
        """Write the records of commits that were not written yet."""
        self._written = time.monotonic()
        is_young = self._written - self._made < _EACH_STEP_S
        commits = tuple(self._unwritten)
        self._unwritten.clear()
        kept = commits if is_young else tuple(_merged(commits))
        if kept:
            self._context.journal.record_all(kept)

    def _tell_epoch(self) -> None:
        """Tell the agent of the last epoch that has ended in this launch, if there is one."""
        if self._told_epoch is not None:
            self._context.report(self._told_epoch)

    def _keep(self, event: Step | Epoch) -> None:
        """Remember a record of a commit, and write it within half a second."""
        now = time.monotonic()
        # Rank 0 may have kept the last record for as long as this step took.
        newest = self._latest[-1][1] if self._latest else now
        together_s = self._together_s(now)
        while self._latest and self._latest[0][1] < newest - 2 * together_s:
            self._latest.popleft()
        self._latest.append((event, now))
        if self._membership.is_first:
            self._unwritten.append((event, now))
            if now - self._written >= together_s:
                self.flush()

    def _together_s(self, now: float) -> float:
        """Return for how long commits are collected before they are written."""
        part = (now - self._made) * _PART_OF_LAUNCH
        return min(max(_TOGETHER_S, part), _LONGEST_TOGETHER_S)


def _plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return metrics as numbers that JSON knows; a replica may give NumPy's."""
    return {name: float(value) for name, value in metrics.items()}


def _merged(commits: Iterable[_Commit]) -> Iterator[_Commit]:
    """Yield the commits with one record for all steps in a row of one epoch and one world."""
    for _, run in groupby(commits, lambda one: (type(one[0]), one[0].generation, one[0].epoch)):
        found = list(run)
        last, now = found[-1]
        steps = [event for event, _ in found if isinstance(event, Step)]
        if not isinstance(last, Step) or len(steps) == 1:
            yield from found
            continue
        seconds = round(sum(step.seconds for step in steps), 6)
        samples = sum(step.samples for step in steps)
        number = sum(step.number for step in steps)
        yield replace(last, seconds=seconds, samples=samples, steps=number), now
