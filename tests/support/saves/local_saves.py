"""Saves of a committer with a local directory, and the steps of both places."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from committing_report import StrikeResult
from host_saves import RUN, Workers, local_of, plan_of

from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.held_save import HeldSave
from holdfast.runtime.saving.local_level import LocalLevel

BOUND_S = 60.0


class Saves:
    """A committer with a local directory that drains nothing by itself."""

    def __init__(self, base: Path, every_saves: int = 1000) -> None:
        (base / "run").mkdir()
        self.local = base / "local" / f"holdfast-{RUN}"
        plan = plan_of(base / "run", **local_of(self.local, every_saves))
        self.workers, self.told = Workers(plan), StrikeResult()
        self._attempt = 0
        self._base = base
        self._is_closed = False
        self._begin()

    @property
    def level(self) -> LocalLevel:
        """The local level of the committer."""
        assert self.committer._maintenance.local is not None
        return self.committer._maintenance.local

    def _begin(self) -> None:
        self.committer = Committer(self.workers.plan, self.told)
        self.rest()  # else it may take a save for a step that the jobs before have left

    def commit(self, step: int, *, needs_run_directory: bool = False) -> None:
        """Save a step; one that goes through has to be in the run directory."""
        self._attempt += 1
        self.committer.commit(self._held(step, needs_run_directory=needs_run_directory))

    def _held(self, step: int, *, needs_run_directory: bool) -> HeldSave:
        save = self.workers.held(step, self._attempt)
        save.ticket = dataclasses.replace(save.ticket, needs_run_directory=needs_run_directory)
        return save

    def restart(self) -> None:
        """Go on with the committer of another launch."""
        self.committer.close(BOUND_S)
        self._begin()

    def rest(self) -> None:
        """Wait until the care of old steps is idle."""
        self.committer._maintenance._thread.submit(int).result(BOUND_S)

    def tidy(self) -> None:
        """Let the care look at the old steps now, and wait for it."""
        self.committer._maintenance._thread.submit(self.committer._maintenance._tidy).result(
            BOUND_S
        )

    def close(self) -> None:
        """Let the care of old steps end, once."""
        if not self._is_closed:
            self._is_closed = True
            self.committer.close(BOUND_S)
            self.workers.close()

    def steps(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the sound steps of the local directory, and of the run directory."""
        return sound_steps(self.local), sound_steps(self._base / "run")


def sound_steps(directory: Path) -> tuple[int, ...]:
    """Return the steps of a directory that verify, newest first."""
    store = CheckpointStore(directory)
    return tuple(step for step in store.steps() if verify_step(store, step).is_valid)
