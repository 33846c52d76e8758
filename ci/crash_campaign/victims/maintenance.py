"""A committer saves, prunes, and reads old steps back.

The newest step is damaged without anybody's knowledge, and dead launches have left a save and a
removal behind.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from committing_report import StrikeResult
from host import EVERYONE, LAUNCH, HostMemory, begin_run, plan_of
from job import save_step, spoil
from supervision import Say
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.store import CheckpointStore
from holdfast.recovery.saves import CommitSave, SaveTicket, WriteShare
from holdfast.runtime.saving.committer import Committer, PlannedMemory

SOUND, DAMAGED, NEW, NEXT = (10, 20, 30, 40), 50, (60, 70), 80
KEPT = 2


class Care:
    """The committer of the first worker, with its care of old steps."""

    name = "care"
    intrusions: Mapping[str, Intrusion] = {}

    def prepare(self, folder: Path, seed: int) -> None:
        """Make sound steps, a damaged one, and leftovers."""
        store = CheckpointStore(folder / RUN)
        for step in (*SOUND, DAMAGED):
            save_step(store, seed, step)
        begin_run(folder / RUN)
        spoil(store, DAMAGED, shard=2)
        dead = store.staging(NEW[0], LAUNCH - 1, 1)
        dead.open()
        (dead.path / "shard-00000-of-00003.h5").write_bytes(b"half of ")

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Save twice; after each save wait for the prune."""
        plan = plan_of(folder / RUN, newest=KEPT)
        committer = Committer(plan, StrikeResult())
        rest(committer)
        marks = committer._maintenance._pruner.marks
        if DAMAGED in marks.damaged or DAMAGED in marks.unread:
            say(f"knows {DAMAGED}")
        for _ in saves(committer, NEW, seed, say):
            rest(committer)
        committer.close(10.0)

    def judge(self, after: Aftermath) -> None:
        """The newest sound steps stay.

        If a call has failed, nobody may know of the damage: then one sound step has to stay.
        """
        saved = after.steps("saved")
        verdict = Verdict.of(after, [DAMAGED])
        count = 1 if after.is_failed and not after.steps("knows") else KEPT
        kept = sorted({*SOUND, *saved})[-count:]
        verdict.restored_step(kept[-1])
        verdict.has(*kept)
        verdict.carries_on(NEXT, LAUNCH + 1)


def saves(committer: Committer, steps: Iterable[int], seed: int, say: Say) -> Iterator[None]:
    """Save these steps one after the other, say how each has ended, and yield after each."""
    memory = HostMemory()
    for attempt, step in enumerate(steps, start=1):
        ticket = memory.ticket(step, attempt)
        for part in EVERYONE:
            memory.copy(seed, ticket, part)
        try:
            _save(committer, memory, ticket)
            say(f"saved {step}")
        except (CheckpointError, OSError) as error:
            say(f"failed to save {step}: {error}")
            with contextlib.suppress(CheckpointError, OSError):
                committer.remove(ticket)
        yield


def _save(committer: Committer, memory: HostMemory, ticket: SaveTicket) -> None:
    """Write what is in memory, and commit it; raises ``CheckpointError`` or ``OSError``."""
    found = PlannedMemory(committer.plan, memory.map)
    records = committer.write(WriteShare(ticket, 0, ""), found, memory.view(ticket))
    committer.commit(CommitSave(ticket, (records,), "{}", time.monotonic()), committer.plan)


def rest(committer: Committer) -> None:
    """Wait until the care of old steps is idle, which has no answer that one could wait for."""
    committer._maintenance._thread.submit(lambda: None).result()
