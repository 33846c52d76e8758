"""When the scripts of the workers have gone apart: one has ended, another trains once more.

Theory.  Each training needs all workers of the world.  A script may count its trainings by a clock,
or train on one worker only.  Then one worker begins a training to which another one will never
come.  The first would wait for ever.

A worker that is merely slower may still come.  So only a worker whose script has ended is
ever named, and only if another one has begun more trainings than it has.  A dead worker is
not looked at: the others go on without it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.recovery.world import WorkerId


@dataclass(frozen=True, slots=True)
class ScriptView:
    """How far the script of a living worker has come.

    ``begun`` counts its trainings, those that were complete before this launch as well.
    """

    worker: WorkerId
    begun: int
    has_ended: bool


@dataclass(frozen=True, slots=True)
class ScriptsApart:
    """A script that has ended, and one that waits for it in a training."""

    ended: ScriptView
    ahead: ScriptView

    @property
    def message(self) -> str:
        """What has happened, with both numbers, and what to do."""
        return (
            f"worker {self.ended.worker} ended its script after {_trainings(self.ended.begun)}, "
            f"but worker {self.ahead.worker} began training {self.ahead.begun}, which needs all "
            "workers: call fit equally often on each; where a clock decides, let a callback "
            "that sets model.stop_training end one long fit for all"
        )


def find_apart(scripts: Iterable[ScriptView]) -> ScriptsApart | None:
    """Return the scripts that have gone apart, None while all may still come together."""
    views = sorted(scripts, key=lambda view: (view.begun, view.worker))
    ended = next((view for view in views if view.has_ended), None)
    if ended is None or views[-1].begun <= ended.begun:
        return None
    ahead = next(view for view in views if view.begun == views[-1].begun)
    return ScriptsApart(ended, ahead)


def _trainings(count: int) -> str:
    """Return a number of trainings in words."""
    return {0: "no training", 1: "1 training"}.get(count, f"{count} trainings")
