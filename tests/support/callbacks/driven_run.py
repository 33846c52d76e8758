"""Workers' callbacks, driven through a plan of work as the training loop drives them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np

from holdfast.checkpoint.tensor import Tensors
from holdfast.recovery.ledger import Cursor
from holdfast.recovery.step import decide
from holdfast.recovery.work_plan import Work, WorkPlan
from holdfast.runtime.keras.callback_rounds import CallbackRounds
from holdfast.runtime.keras.callback_run import CallbackRun
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.overlay import Overlay
from holdfast.runtime.script.process import ScriptProcess
from holdfast.runtime.script.saves import EventFiles, FirstSaves, KeptLoads
from holdfast.runtime.training.callback_host import Commit

STEPS = 3
"""Steps of an epoch."""


class Weights:
    """A replica of one tensor; the loss of an epoch is the mean of its steps' losses."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {"w": np.zeros(2, np.float32)}
        self.held: list[tuple[float, int]] = []

    def results(self, sums: Any, samples: int) -> dict[str, float]:
        return {"loss": float(sums[0]) / samples}

    def hold(self, sums: Any, samples: int) -> None:
        self.held.append((float(sums[0]), samples))

    def state(self) -> Tensors:
        return dict(self.tensors)

    def load(self, state: Tensors) -> None:
        self.tensors = {name: np.array(array) for name, array in state.items()}


@dataclass(frozen=True)
class Kept:
    """What a checkpoint keeps of a worker."""

    cursor: Cursor
    notes: Any
    tensors: Tensors
    state: Tensors


def plan_of(epochs: int = 2, **terms: Any) -> WorkPlan:
    """Return a plan without validation, unless ``terms`` say so."""
    given: dict[str, Any] = {"has_validation": False, "save_every": None, **terms}
    return WorkPlan(steps_per_epoch=STEPS, epochs=epochs, **given)


def one_layer(execution: int = 1) -> Any:
    """Return a compiled model of one layer, with so many steps in each execution."""
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True, steps_per_execution=execution)
    return model


class Driven:
    """One worker with its callbacks; its ``losses`` are those of the steps, by number."""

    def __init__(
        self,
        callbacks: Any,
        scratch: Path,
        plan: WorkPlan | None = None,
        *,
        is_first: bool = True,
        losses: Callable[[int], float] = float,
        execution: int = 1,
    ) -> None:
        self.plan = plan or plan_of()
        self.said: list[str] = []
        self.model, self.replica = one_layer(execution), Weights()
        self.files = Overlay(is_first, lambda: scratch, self.said.append)
        events = EventFiles(self.files, ".r-1")
        kept = KeptLoads(scratch / "loaded", lambda text: None)
        record = ScriptRecord(scratch / "record")
        process = ScriptProcess(Path(__file__), record, scratch / "run", lambda: scratch)
        self.saves = FirstSaves(process, kept)
        params = {"epochs": self.plan.last_epoch, "steps": STEPS}
        partners = (self.files, events, self.saves, params)
        self.rounds = CallbackRounds(callbacks, self.model, self.replica, *partners)  # type: ignore[arg-type]
        epochs = range(self.plan.first_epoch, self.plan.last_epoch)
        shown = (epochs, self.said.append, None, STEPS)
        self.run = CallbackRun(self.model, self.replica, self.rounds, *shown)  # type: ignore[arg-type]
        self.cursor = Cursor.start(1)
        self.losses = losses
        self._has_ended = False

    @property
    def is_complete(self) -> bool:
        """Whether the loop has nothing left to do."""
        return self.run.is_over or self.plan.next_work(self.cursor) is None

    def keep(self) -> Kept:
        """Return what a checkpoint has of this moment."""
        notes = json.loads(json.dumps(self.run.notes(), allow_nan=False))
        tensors = {name: np.array(array) for name, array in self.run.tensors().items()}
        return Kept(self.cursor, notes, tensors, self.replica.state())

    def commit(self) -> None:
        """Commit the work that is next, and show it to the callbacks."""
        plan, work = self.plan, self.plan.next_work(self.cursor)
        assert work is not None
        self.run.before(work, self.cursor)
        if work is Work.TRAIN:
            start = (
                self.cursor.at_epoch_start() if plan.is_epoch_start(self.cursor) else self.cursor
            )
            self.cursor = start.after_step(1, 0, np.array([self.losses(start.step)]))
        else:
            self.cursor = self.cursor.after_evaluation()
        cursor = self.cursor
        has_ended = plan.has_ended_epoch(cursor) and plan.is_save_point(cursor)
        validation = {"loss": 0.5} if work is Work.EVALUATE else None
        results = self.replica.results(cursor.sums, cursor.ledger.samples)
        of_epoch = (plan.epoch_of(cursor), has_ended, results, validation)
        following = plan.next_work(cursor)
        self.run.after(Commit(work, cursor, *of_epoch, following, plan.validates_cut(cursor)))

    def conclude(self) -> None:
        """Do what the loop does after each agreement on a commit."""
        if self.run.cuts_epoch and not self.cursor.is_cut:
            self.cursor = self.cursor.after_cut()
        if self.is_complete and not self.run.has_effects and not self._has_ended:
            self._has_ended = True
            self.run.end()


def begin(*workers: Driven, kept: Kept | None = None) -> None:
    """Begin the stage on all workers, or go on from a checkpoint."""
    for worker in workers:
        if kept is not None:
            worker.cursor = Cursor.from_tensors(kept.cursor.tensors())
            worker.replica.load(kept.state)
            worker.run.load(kept.tensors)
        worker.run.restore(worker.cursor, None if kept is None else kept.notes)
    while workers[0].run.has_effects:
        agree(workers)


def drive(*workers: Driven, commits: int = 1000) -> None:
    """Commit so much work on all workers, at most what is left."""
    for _ in range(commits):
        if workers[0].is_complete:
            return
        for worker in workers:
            worker.commit()
            worker.conclude()
        while workers[0].run.has_effects:
            agree(workers)
            for worker in workers:
                worker.conclude()


def agree(workers: Sequence[Driven]) -> None:
    """Let all workers have the same effects of the round that has run, and run the next one."""
    first = workers[0]
    first.run.lead(is_first=True)
    decision = decide([worker.run.effects() for worker in workers])
    message = first.run.message()
    kept = first.keep() if decision.shares_notes or decision.shares_state else None
    for worker in workers:
        if kept is not None and decision.shares_state:
            worker.replica.load(kept.state)
            worker.run.load(kept.tensors)
        worker.run.decided(decision, message, None if kept is None else kept.notes)
