"""A call of ``fit``: how it is shown, the epoch at which the run began it, and one alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.names import MANIFEST_NAME
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.fit_call import FitCall, as_begun, fit
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
            config=SimpleNamespace(record=SimpleNamespace(run_id="run")),
        )
        return SimpleNamespace(context=context, stage=stage)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_run_goes_on_in_the_epochs_that_it_began_with_and_says_so(run: Run) -> None:
    run.save(4, {"first epoch": 1})

    call = as_begun(LATER, run.stages(Stage()))

    assert (call.initial_epoch, call.epochs) == (1, 6)
    assert len(run.told) == 1
    assert "initial_epoch=3" in run.told[0]


@pytest.mark.parametrize(
    ("step", "cursor", "stage"),
    [
        (None, {}, Stage()),
        (4, {"first epoch": 3}, Stage()),
        (14, {"stage": 2}, SECOND),
        (14, {"first epoch": 0}, SECOND),
        (10, {"first epoch": 0, "stage": 2}, SECOND),
    ],
    ids=["none", "says the same", "does not tell", "of the training before", "of its end"],
)
def test_checkpoint_that_tells_nothing_else_leaves_the_word_to_the_script(
    run: Run, step: int | None, cursor: dict[str, object], stage: Stage
) -> None:
    if step is not None:
        run.save(step, cursor)

    assert as_begun(LATER, run.stages(stage)) is LATER
    assert run.told == []


def _without_manifest(step: Path) -> None:
    (step / MANIFEST_NAME).write_bytes(b"{")


@pytest.mark.parametrize("damage", [shutil.rmtree, _without_manifest])
def test_damaged_checkpoint_leaves_the_word_to_an_older_one(
    run: Run, damage: Callable[[Path], None]
) -> None:
    run.save(4, {"first epoch": 0})
    damage(run.save(6, {"first epoch": 2}))

    assert as_begun(LATER, run.stages(Stage())).initial_epoch == 0


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ((None, None), (9, None, 4)),
        ((0, 0), (9, None, 4)),
        ((3, None), (3, None, 4)),
        ((20, 2), (9, 2, 2)),
        ((9, 7), (9, 7, 4)),
    ],
)
def test_limits_of_keras_config_hold_for_epochs_and_for_steps_of_both_kinds(
    limits: tuple[int | None, int | None], found: tuple[int, int | None, int]
) -> None:
    call = FitCall(epochs=9, validation_steps=4).within(*limits)

    assert (call.epochs, call.steps_per_epoch, call.validation_steps) == found


def test_argument_that_fit_does_not_have_is_named_as_the_scripts() -> None:
    words = r"^Model\.fit\(\) got an unexpected keyword argument 'epoch'"

    with pytest.raises(TypeError, match=words):
        FitCall.of(None, epoch=3)
    assert FitCall.of(None, None, 8, epochs=3) == FitCall(batch_size=8, epochs=3)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that come to the training."""
    pytest.importorskip("keras")
    from holdfast.runtime.keras import keras_fit

    found: list[Any] = []

    def train(model: Any, call: FitCall) -> str:
        found.append((model, call))
        return "the history"

    monkeypatch.setattr(keras_fit, "fit", train)
    return found


@pytest.mark.tensorflow
def test_arguments_by_place_and_by_name_are_those_of_keras(calls: list[Any]) -> None:
    assert fit("model", "x", "y", 8, 3, verbose=2) == "the history"
    assert calls == [("model", FitCall("x", "y", batch_size=8, epochs=3, verbose=2))]


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epoch": 3}, "got an unexpected keyword argument 'epoch'"),
        ({"workers": 2}, "got an unexpected keyword argument 'workers'"),
        ({"x": 1}, "got multiple values for argument 'x'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_argument_that_keras_does_not_take_trains_nothing(
    calls: list[Any], arguments: dict[str, Any], said: str
) -> None:
    words = rf"^holdfast\.fit\(\) takes the arguments of Keras: Model\.fit\(\) {said}"

    with pytest.raises(ProgramError, match=words):
        fit("model", "x", **arguments)
    assert calls == []
