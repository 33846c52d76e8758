"""Reads that all workers make together, again and again while the file system fails.

A worker alone may have too many open files, or a stale handle.  All wait for it: what one cannot
read is read by none.  Only those whose read has failed make it again.  Each wait is followed by
an exchange, so a death breaks the world here as anywhere else, and repair begins the restore
anew.  A wait is work that needs no peer: the page tells the agent so.

`recovery.patience` decides for how long.
"""

from __future__ import annotations

import errno
import itertools
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from holdfast.checkpoint.errors import (
    TRANSIENT,
    CheckpointError,
    CheckpointInvalid,
    CheckpointUnreadable,
    StorageFailed,
)
from holdfast.checkpoint.names import STORE_NAME, step_name
from holdfast.recovery.patience import PATIENT, Finding, Patience, Tries, Verdict
from holdfast.runtime.errors import CheckpointsUnread, UsageError
from holdfast.runtime.exchange.communicator import Communicator
from holdfast.runtime.run.checkpoint_events import Rejected, Unreadable
from holdfast.runtime.run.entries import record
from holdfast.runtime.system.codec import decode, encode
from holdfast.runtime.system.witnessed_time import witnessed_s
from holdfast.runtime.system.worker_status import RequestFlag
from holdfast.runtime.worker.context import WorkerContext

AGAIN = "nothing is known to be damaged: run again when the file system answers"


@dataclass(frozen=True, slots=True)
class Waits:
    """How a worker waits between two tries; tests pass a clock of their own."""

    patience: Patience = PATIENT
    clock: Callable[[], float] = witnessed_s
    sleep: Callable[[float], None] = time.sleep


WAITS = Waits()


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a worker could not read; ``seconds`` and ``tries`` are those of all workers together."""

    finding: Finding = Finding.FINE
    reason: str = ""
    number: int = 0
    path: str = ""
    seconds: float = 0.0
    tries: int = 1
    is_other_runs: bool = False
    """Whether the step is rejected only because another run has saved it."""

    @property
    def error(self) -> str:
        """The name of the error number, or "no errno"."""
        return errno.errorcode.get(self.number, "no errno")

    @property
    def is_damage(self) -> bool:
        """Whether the step is this run's and wrong."""
        return self.finding is Finding.DAMAGED and not self.is_other_runs

    def __str__(self) -> str:
        return f"{self.reason}; tried {self.tries} times in {self.seconds:.1f} s"


@dataclass(frozen=True, slots=True)
class _Card:
    """What a worker tells the others after a try."""

    trouble: Trouble
    spent_s: float
    is_stop_wanted: bool


class JointRetries:
    """Tries reads together with all workers of a world, and tells of what fails."""

    def __init__(self, context: WorkerContext, waits: Waits = WAITS) -> None:
        self._context = context
        self._waits = waits
        self._spent_s = 0.0
        self.unread: dict[int, Trouble] = {}
        """The steps on the disk that were given up, and that may be whole."""
        self.damaged: set[int] = set()
        """The steps of this run in its directory that did not verify at their last read."""

    def succeed(
        self,
        communicator: Communicator,
        step: int,
        attempt: Callable[[], None],
    ) -> bool:
        """Return whether ``attempt`` succeeded on all workers; the same on all of them.

        Raises:
            CheckpointsUnread: the job was asked to stop, and could only wait.
            WorldBroken: a member died.
        """
        trouble = self._try(communicator, f"checkpoint step {step}", attempt)
        if trouble is None:
            return True
        if communicator.rank == 0:
            self._tell(step, trouble)
        if trouble.finding.is_unread:
            self.unread[step] = trouble
        if trouble.is_damage:
            self.damaged.add(step)
        return False

    def insist(self, communicator: Communicator, attempt: Callable[[], None]) -> None:
        """Return once ``attempt``, which lists the checkpoints, has succeeded.

        Raises:
            UsageError: they cannot be listed, and waiting would not help.
            CheckpointsUnread: they could not be listed for a long time.
            WorldBroken: a member died.
        """
        trouble = self._try(communicator, "the list of checkpoints", attempt)
        if trouble is None:
            return
        if trouble.finding is Finding.TRANSIENT:
            raise CheckpointsUnread(f"{trouble}; {AGAIN}")
        raise UsageError(trouble.reason)

    def tell_of_newer(self, restored: int) -> None:
        """Tell of the steps that may be whole, and newer than the one that was restored."""
        for step, trouble in self.unread.items():
            if step > restored:
                self._context.notify(
                    f"training goes on from checkpoint step {restored}, because the newer step "
                    f"{step} could not be read: {trouble}; it is not known to be damaged, and stays"
                )

    def tell_of_rejected(self, restored: int) -> None:
        """Tell from where training goes on, as newer steps were rejected; what can be mended."""
        newest = max(self.damaged, default=restored)
        text = f"training goes on from checkpoint step {restored}"
        if newest > restored:
            run_dir = shlex.quote(str(self._context.run_dir))
            text += (
                f", because step {newest} is damaged; to mend that from a copy, stop the job: "
                f"`holdfast repair {run_dir} --from COPY`"
            )
        self._context.notify(text)

    def _try(
        self, communicator: Communicator, what: str, attempt: Callable[[], None]
    ) -> Trouble | None:
        """Try until all workers succeed; return what is wrong if ``what`` they read is given up."""
        patience = self._waits.patience
        mine, before_s, began = _trouble_of(attempt), self._spent_s, self._waits.clock()
        for count in itertools.count(1):
            cards = self._exchange(communicator, mine)
            if count == 1:  # the first try is no waiting, however long it takes
                began, first_s = self._waits.clock(), cards[0].spent_s
            findings = [card.trouble.finding for card in cards]
            tries = Tries(count, cards[0].spent_s, any(card.is_stop_wanted for card in cards))
            verdict = patience.verdict(findings, tries)
            if verdict is Verdict.TAKE:
                break
            worst = max((card.trouble for card in cards), key=lambda trouble: trouble.finding)
            trouble = replace(worst, seconds=tries.spent_s - first_s, tries=count)
            if verdict is Verdict.OLDER:
                return trouble
            if verdict is Verdict.STOP:
                raise CheckpointsUnread(f"told to stop: {what}: {trouble}; {AGAIN}")
            self._wait(communicator, what, trouble, patience.nap_s(tries) or 0.0)
            if mine.finding is not Finding.FINE:
                mine = _trouble_of(attempt)
            self._spent_s = before_s + self._waits.clock() - began
        return None

    def _exchange(self, communicator: Communicator, mine: Trouble) -> list[_Card]:
        """Return the cards of all workers, in rank order; each tells its own trouble."""
        is_stop_wanted = bool(self._context.page.requests & RequestFlag.STOP)
        card = _Card(mine, self._spent_s, is_stop_wanted)
        return [decode(_Card, found) for found in communicator.allgather_bytes(encode(card))]

    def _wait(self, communicator: Communicator, what: str, trouble: Trouble, nap_s: float) -> None:
        if trouble.tries == 1 and communicator.rank == 0:
            whole_s = self._waits.patience.whole_s
            self._context.notify(
                f"{what} cannot be read just now: {trouble.reason}; all workers wait and try "
                f"again, for {whole_s:.0f} s in all"
            )
        with self._context.page.needing_no_peer():
            self._waits.sleep(nap_s)

    def _tell(self, step: int, trouble: Trouble) -> None:
        """Record why a step was given up; a step that may be whole is not rejected."""
        reason = trouble.reason
        if trouble.finding is Finding.DAMAGED:
            record(self._context.journal, Rejected(step=step, reason=reason))
            advice = self._advice(step, trouble)
            self._context.notify(f"checkpoint step {step} was rejected: {reason}; {advice}")
            return
        unread = Unreadable(
            step=step,
            reason=reason,
            seconds=round(trouble.seconds, 3),
            tries=trouble.tries,
            path=trouble.path,
            error=trouble.error,
        )
        record(self._context.journal, unread)

    def _advice(self, step: int, trouble: Trouble) -> str:
        run_dir = self._context.run_dir
        place = run_dir / STORE_NAME / step_name(step)
        if trouble.is_other_runs:
            return f"move {place} to where that run is"
        return (
            f"mend it from a copy with `holdfast repair {run_dir} --from COPY`, or remove {place}"
        )


def _trouble_of(attempt: Callable[[], None]) -> Trouble:
    """Make one try; return why it failed, if it did."""
    try:
        attempt()
    except (CheckpointUnreadable, StorageFailed) as error:
        finding = Finding.TRANSIENT if error.errno in TRANSIENT else Finding.UNREADABLE
        reason = error.reason if isinstance(error, CheckpointUnreadable) else str(error)
        return Trouble(finding, reason, error.errno, str(error.path or ""))
    except CheckpointInvalid as error:
        return Trouble(Finding.DAMAGED, error.reason, is_other_runs=error.is_other_runs)
    except CheckpointError as error:
        return Trouble(Finding.DAMAGED, str(error))
    except MemoryError:
        reason = "there is not enough memory (ENOMEM)"
        return Trouble(Finding.TRANSIENT, reason, errno.ENOMEM)
    return Trouble()
