"""A job saves to a local directory first, and some of its steps drain to the run directory.

A job before it has left a step in the local directory that has not drained, and half of a save.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from host import LAUNCH, plan_of, ticket_of
from job import open_store, same, save_step, state_of
from quiet_report import QuietReport
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import Committer
from victims.maintenance import rest

DRAINED, LEFT, NEW, THROUGH, NEXT = (10, 20), 30, (40, 50), 60, 70
_EVERY_SAVES = 2


class _Telling(QuietReport):
    """Says each step that has drained."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def record(self, event: str, /, **fields: object) -> None:
        """Take an event, and say a drain."""
        if event == "drained":
            self._say(f"drained {fields['step']}")


class Local:
    """The committer of a job with a local directory."""

    name = "local"
    intrusions: Mapping[str, Intrusion] = {}

    def prepare(self, folder: Path, seed: int) -> None:
        """Make steps that have drained, one that has not, and the rest of a dead save."""
        for step in DRAINED:
            save_step(open_store(folder / RUN), seed, step)
        _local(folder).mkdir(parents=True)
        local = open_store(_local(folder))
        save_step(local, seed, LEFT)
        dead = local.staging(NEW[0], LAUNCH - 1, 1)
        dead.open()
        (dead.path / "shard-00000-of-00003.h5").write_bytes(b"half of ")

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Save some steps, which drain now and then, and a last one that has to."""
        local = _local(folder).parent
        plan = plan_of(folder / RUN, local_dir=local, drain_every=str(_EVERY_SAVES))
        committer = Committer(plan, _Telling(say))
        rest(committer)
        for attempt, step in enumerate((*NEW, THROUGH), start=1):
            ticket = replace(ticket_of(plan, step, attempt), needs_run_directory=step == THROUGH)
            try:
                committer.commit_state(ticket, {}, state_of(seed, step))
                say(f"{'put' if step == THROUGH else 'saved'} {step}")
            except (CheckpointError, OSError) as error:
                say(f"failed to save {step}: {error}")
            rest(committer)
        committer.close(10.0)

    def judge(self, after: Aftermath) -> None:
        """What was saved is in one of both places, and what was put is in the run directory."""
        put = after.steps("put") | after.steps("drained")
        verdict = Verdict.of(after)
        verdict.restored_step(max(put | set(DRAINED)))
        stores = [open_store(after.run_dir), open_store(_local(after.folder))]
        _restores(verdict, stores, max({LEFT} | put | after.steps("saved")))
        for step in stores[1].steps():
            _restores(verdict, stores[1:], step)
        verdict.carries_on(NEXT, LAUNCH + 1)
        left = stores[1].clean_staging(LAUNCH + 1)
        if left:
            after.complain(Wrong.OTHER, f"left in the local directory: {left}")


def _local(folder: Path) -> Path:
    return folder / "disk" / "local" / "holdfast-crash"


def _restores(verdict: Verdict, stores: list[CheckpointStore], step: int) -> None:
    """Complain unless one of the stores gives the step's bytes back, or a newer step's."""
    seed, reasons = verdict.after.seed, list[str]()
    for store in stores:
        newest = max((found for found in store.steps() if found >= step), default=step)
        try:
            restored = restore(store, newest, run_id=verdict.run_id)
        except CheckpointError as error:
            reasons.append(str(error))
            continue
        if not same(restored.state, state_of(seed, newest)):
            verdict.complain(Wrong.SILENT, f"step {newest} has other bytes")
        return
    verdict.complain(Wrong.LOST, f"step {step} is in neither place: {reasons}")
