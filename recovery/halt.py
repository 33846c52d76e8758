"""What is saved when the workers of a launch are halted: by whom, and as which save.

Theory.  An order to stop is obeyed at the next step, by agreement.  If that does not come within
seconds, because a script validates, sleeps or hangs, the workers are *halted*: none of them changes
its state any more.  Each holds a whole state, and the newest of these is the result of the last
applied step.  So nobody has to be waited for.  Those that hold the newest state save it together,
each its share, and no worker needs a word of MPI for it.

A worker is *settled* when the callbacks after its last transaction have run and were agreed on.
Before that it holds the state as it was before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.recovery.world import WorkerId


@dataclass(frozen=True, slots=True, order=True)
class Held:
    """How new a state is: the larger one is the newer one."""

    version: int
    is_settled: bool
    generation: int
    """That of the worker's world; only workers of one world save together."""


@dataclass(frozen=True, slots=True)
class Halted:
    """A worker that is halted: what it holds, and how many saves it has begun."""

    worker: WorkerId
    held: Held | None
    """None while it gets the state of another worker."""
    saves: int
    is_saved: bool
    """Whether a checkpoint holds the same, or there is nothing to hold."""


@dataclass(frozen=True, slots=True)
class HaltPlan:
    """The workers that save, in the order of their parts, and the number of their save."""

    savers: tuple[WorkerId, ...]
    attempt: int
    """0 if nothing has to be saved."""


def plan_halt(halted: Sequence[Halted]) -> HaltPlan:
    """Return who saves what ``halted`` workers hold."""
    newest = max((one.held for one in halted if one.held is not None), default=None)
    savers = sorted((one for one in halted if one.held == newest), key=lambda one: one.worker)
    workers = tuple(one.worker for one in savers)
    if newest is None or all(one.is_saved for one in savers):
        return HaltPlan(workers, 0)
    return HaltPlan(workers, max(one.saves for one in halted) + 1)
