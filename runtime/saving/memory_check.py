"""Replicas compare digests of their states: a wrong bit in memory must not reach a checkpoint.

A thread takes a digest after a commit, while the next transaction is computed.  That leaves the
arrays of the state as they are.  The digests are compared before the sum of that transaction.  So a
replica whose memory is wrong takes part in no sum after the check that finds it.  No
checkpoint is committed whose state was not compared.  Sums between the previous check and
this one may hold wrong contributions; with a check after every step there are no such sums.
"""

from __future__ import annotations

import contextlib
import os
import signal
import weakref
from collections.abc import Callable
from concurrent.futures import Future, wait

from holdfast.checkpoint.digest import Digest
from holdfast.checkpoint.tensor import Tensors, whole_bytes_of
from holdfast.recovery.step import REFUSAL, DigestComparison, compare_digests
from holdfast.runtime.errors import WorldLost
from holdfast.runtime.exchange.communicator import WorldBroken
from holdfast.runtime.exchange.membership import Membership
from holdfast.runtime.run.events import MemoryDiffers
from holdfast.runtime.system.daemon_executor import DaemonExecutor
from holdfast.runtime.worker.context import WorkerContext
from holdfast.runtime.worker.records import LoopRecords


class MemoryCheck:
    """One worker's part in comparing the states of a world."""

    def __init__(
        self, context: WorkerContext, membership: Membership, records: LoopRecords
    ) -> None:
        self._context = context
        self._membership = membership
        self._records = records
        self._thread = DaemonExecutor(1, "holdfast-digest")
        weakref.finalize(self, self._thread.shutdown)
        self._pending: tuple[int, Future[str | None]] | None = None

    def take(
        self,
        step: int,
        state: Tensors,
        then: Callable[[Tensors, str], None] = lambda _state, _digest: None,
    ) -> None:
        """Begin to digest ``state``, which all members hold after ``step``, for ``compare``.

        The thread calls ``then`` with the state and its digest.  A member that is alone has
        no peer to compare with, and takes no digest.
        """
        is_alone = self._membership.communicator.size == 1
        self._pending = step, self._thread.submit(digest_then, state, then, is_alone=is_alone)

    def world_changed(self) -> None:
        """Drop the digest: the world that took it exists no more."""
        if self._pending is not None:
            with self._context.page.needing_no_peer():
                wait([self._pending[1]])  # the state is about to change
        self._pending = None

    def compare(self) -> None:
        """Compare the digest of ``take`` with all members'; all must call this at the same point.

        A worker that differs from the majority does not return: it fences itself.

        Raises:
            WorldBroken: a member died, or is about to because its memory is wrong.
            WorldLost: the members differ, and no majority shows which is right.
        """
        if self._pending is None:
            return
        (step, taken), self._pending = self._pending, None
        with self._context.page.needing_no_peer():  # a large state takes its time
            digest = taken.result()
        if digest is None:
            return
        everyones = self._membership.communicator.allgather_bytes(bytes.fromhex(digest))
        found = compare_digests(everyones)
        if not found.is_unanimous:
            self._settle(step, found)

    def _settle(self, step: int, found: DigestComparison) -> None:
        """Act on a difference: raise, or fence this worker; never returns."""
        workers = [self._membership.world.workers[rank] for rank in found.minority]
        self._records.note(
            MemoryDiffers(step=step, workers=tuple(workers), has_majority=found.has_majority)
        )
        if not found.has_majority:
            # A peer whose comparison broke at the last moment must not go on alone.  It votes
            # "no" now, and sees this vote before it can see this worker's death.
            with contextlib.suppress(WorldBroken):
                self._membership.communicator.agree(REFUSAL)
            raise WorldLost(
                f"the states of workers {workers} differ after step {step}, and no majority shows "
                "which is right; the step is not saved, the job goes back to its last checkpoint"
            )
        rank = self._membership.communicator.rank
        if rank not in found.minority:
            raise WorldBroken(f"the memory of workers {workers} is wrong")
        self._context.notify(
            f"the memory of worker {self._membership.me} is wrong after step {step}: "
            "its state is not that of the majority; it is fenced"
        )
        os.kill(os.getpid(), signal.SIGKILL)


def digest_then(
    state: Tensors, then: Callable[[Tensors, str], None], *, is_alone: bool
) -> str | None:
    """Return the digest of ``state``, after a call with both; None if it has none to compare."""
    digest = Digest()
    for name in () if is_alone else sorted(state):
        digest.update(whole_bytes_of(state[name]))
    then(state, digest.hexdigest())
    return None if is_alone else digest.hexdigest()
