"""What a callback changes after the graph of a step was made: refused by name, or told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driven_run import Driven, begin, drive, one_layer

from holdfast.recovery.work_plan import Work
from holdfast.runtime.callbacks.callback_rounds import TracedSettings
from holdfast.runtime.errors import ProgramError

pytestmark = pytest.mark.tensorflow

BEFORE_THE_FIRST_STEP = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin")


def setter(hook: str, name: str, value: float) -> Any:
    """Return a callback that sets an attribute of the optimizer."""
    keras = pytest.importorskip("keras")

    def change(self: Any, *_: Any, **__: Any) -> None:
        setattr(self.model.optimizer, name, value)

    return type("Setter", (keras.callbacks.Callback,), {hook: change})()


@pytest.mark.parametrize("hook", BEFORE_THE_FIRST_STEP)
def test_late_setting_is_refused(tmp_path: Path, hook: str) -> None:
    worker = Driven([setter(hook, "clipnorm", 0.5)], tmp_path)
    begin(worker)

    with pytest.raises(ProgramError, match=r"clipnorm of .* from None to 0\.5 .* before fit"):
        worker.commit()


@pytest.mark.parametrize(
    ("hook", "name"),
    [("on_train_begin", "learning_rate"), ("on_epoch_end", "clipnorm")],
    ids=["a variable has effect", "Keras ignores it too"],
)
def test_other_changes_are_as_in_keras(tmp_path: Path, hook: str, name: str) -> None:
    worker = Driven([setter(hook, name, 0.5)], tmp_path)
    begin(worker)

    drive(worker)

    assert worker.is_complete


def compiled() -> Any:
    keras = pytest.importorskip("keras")
    model = one_layer()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def set_numpy_number(model: Any) -> None:
    model.optimizer.clipnorm = np.float32(0.5)


def set_schedule(model: Any) -> None:
    keras = pytest.importorskip("keras")
    model.optimizer.learning_rate = keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5)


def freeze(model: Any) -> None:
    model.layers[0].trainable = False


def set_second(model: Any) -> None:
    model.second.clipnorm = 0.5


def set_rate_of_an_inner_layer(model: Any) -> None:
    model.layers[-1].layers[0].rate = 0.5


@pytest.mark.parametrize(
    "change", [set_numpy_number, set_schedule, freeze, set_second, set_rate_of_an_inner_layer]
)
def test_change_of_any_kind_is_found(change: Any) -> None:
    keras = pytest.importorskip("keras")
    model = compiled()
    model.add(keras.Sequential([keras.layers.Dropout(0.1)]))
    model.second = keras.optimizers.SGD(0.2)
    settings = TracedSettings(model)
    settings.check()

    change(model)

    with pytest.raises(ProgramError, match="before the first step"):
        settings.check()


def test_what_the_script_keeps_on_its_optimizer_is_its_own() -> None:
    """No graph reads it; NaN is not equal to itself."""
    model = compiled()
    model.optimizer.last_loss, model.optimizer.epoch_seen = float("nan"), -1
    settings = TracedSettings(model)

    model.optimizer.epoch_seen = 0
    model.optimizer.momentum = float(model.optimizer.momentum)
    model.optimizer.learning_rate = 0.5

    settings.check()


def test_training_that_goes_on_is_not_looked_at(tmp_path: Path) -> None:
    """Its first launch was; a scheduler sets the value of a later epoch before the first step."""
    first = Driven([setter("on_epoch_end", "clipnorm", 0.5)], tmp_path)
    begin(first)
    first.commit()
    worker = Driven([setter("on_train_begin", "clipnorm", 0.5)], tmp_path)
    kept = first.keep()
    worker.run.load(kept.tensors)

    worker.run.restore(kept.cursor, kept.notes)
    worker.run.before(Work.TRAIN, kept.cursor)

    assert worker.model.optimizer.clipnorm == 0.5


def within_a_loss_scale(optimizer: Any, model: Any) -> Any:
    keras = pytest.importorskip("keras")
    return keras.optimizers.LossScaleOptimizer(optimizer)


def one_of_several(optimizer: Any, model: Any) -> Any:
    keras = pytest.importorskip("keras")
    several = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(optimizer))
    several.build(model.trainable_variables)
    return several


@pytest.mark.parametrize("wrapped", [within_a_loss_scale, one_of_several])
def test_optimizer_within_another_is_watched(wrapped: Any) -> None:
    keras = pytest.importorskip("keras")
    model = one_layer()
    optimizer = keras.optimizers.Adam()
    model.optimizer = wrapped(optimizer, model)
    settings = TracedSettings(model)

    optimizer.beta_1 = 0.5

    with pytest.raises(ProgramError, match=r"beta_1 of Adam .* from 0\.9 to 0\.5"):
        settings.check()


def annealer(hook: str) -> Any:
    """Return a callback that sets the weight of a loss, a number of the model."""
    keras = pytest.importorskip("keras")

    def change(self: Any, *_: Any, **__: Any) -> None:
        self.model.kl_weight = 0.0

    return type("Annealer", (keras.callbacks.Callback,), {hook: change})()


@pytest.mark.parametrize(
    ("hook", "is_told"),
    [*((hook, True) for hook in BEFORE_THE_FIRST_STEP), ("on_epoch_end", False)],
)
def test_number_of_the_model_that_is_set_too_late_is_told(
    tmp_path: Path, hook: str, *, is_told: bool
) -> None:
    """Whether the step reads it, nobody knows; a number set after the first step is as in Keras."""
    worker = Driven([annealer(hook)], tmp_path)
    worker.model.kl_weight = 1.0
    worker.rounds._settings = TracedSettings(worker.model)
    begin(worker)

    drive(worker)

    told = [line for line in worker.said if "kl_weight" in line]
    name = worker.model.name
    words = f"a callback has set kl_weight of Sequential {name!r} from 1.0 to 0.0 before the first"
    assert [line.startswith(words) for line in told] == [True] * is_told


def test_what_keras_sets_itself_is_not_told() -> None:
    model = compiled()
    settings = TracedSettings(model)

    model.stop_training = True
    model.fit(np.zeros((4, 1)), np.zeros((4, 1)), verbose=0)

    settings.check()
    assert settings.changed_numbers() == []
