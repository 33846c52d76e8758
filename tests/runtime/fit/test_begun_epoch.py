"""A script that counts its epochs anew at each start goes on in those that the run began with."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.checkpoint.names import MANIFEST_NAME
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.runtime.fit.fit_call import FitCall, as_begun
from holdfast.runtime.training.training_job import Stage

SECOND = Stage(2, 10)
LATER = FitCall(epochs=6, initial_epoch=3)


class Run:
    """A run directory, and the stages of a script that goes on in it."""

    def __init__(self, directory: Path) -> None:
        self.store = CheckpointStore(directory)
        self.told: list[str] = []

    def save(self, step: int, cursor: dict[str, object]) -> Path:
        state = {"weights": np.zeros(2, np.float32)}
        return save(self.store, state, header=Header("run", 1, step), writers=1, cursor=cursor)

    def stages(self, stage: Stage) -> Any:
        context = SimpleNamespace(
            open_store=lambda: self.store,
            notify=self.told.append,
            config=SimpleNamespace(run_id="run"),
        )
        return SimpleNamespace(context=context, stage=stage)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_run_without_a_checkpoint_begins_where_the_script_says(run: Run) -> None:
    assert as_begun(LATER, run.stages(Stage())) is LATER
    assert run.told == []


def test_run_goes_on_in_the_epochs_that_it_began_with_and_says_so(run: Run) -> None:
    run.save(4, {"first epoch": 1})

    call = as_begun(LATER, run.stages(Stage()))

    assert (call.initial_epoch, call.epochs) == (1, 6)
    assert len(run.told) == 1
    assert "initial_epoch=3" in run.told[0]


def test_script_that_says_the_same_is_told_nothing(run: Run) -> None:
    run.save(4, {"first epoch": 3})

    assert as_begun(LATER, run.stages(Stage())) is LATER
    assert run.told == []


UNKNOWN: dict[str, dict[str, object]] = {
    "it was saved by an older version": {"stage": 2},
    "it belongs to the training before": {"first epoch": 0},
}


@pytest.mark.parametrize("cursor", UNKNOWN.values(), ids=UNKNOWN)
def test_checkpoint_that_does_not_tell_changes_nothing(run: Run, cursor: dict[str, object]) -> None:
    run.save(14, cursor)

    assert as_begun(LATER, run.stages(SECOND)) is LATER


def test_checkpoints_of_earlier_trainings_are_not_asked(run: Run) -> None:
    run.save(10, {"first epoch": 0, "stage": 2})

    assert as_begun(LATER, run.stages(SECOND)) is LATER


def _without_manifest(step: Path) -> None:
    (step / MANIFEST_NAME).write_bytes(b"{")


@pytest.mark.parametrize("damage", [shutil.rmtree, _without_manifest])
def test_damaged_checkpoint_leaves_the_word_to_an_older_one(
    run: Run, damage: Callable[[Path], None]
) -> None:
    run.save(4, {"first epoch": 0})
    damage(run.save(6, {"first epoch": 2}))

    assert as_begun(LATER, run.stages(Stage())).initial_epoch == 0
