"""A setting that a callback changes after the graph of a step was made is refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from driven_run import Driven, begin, drive, one_layer

from holdfast.runtime.callbacks.optimizer_settings import OptimizerSettings
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

    with pytest.raises(ProgramError, match=r"clipnorm from None to 0\.5 .* before fit"):
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


def test_optimizer_within_a_loss_scale_is_watched() -> None:
    keras = pytest.importorskip("keras")
    model = one_layer()
    model.optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    settings = OptimizerSettings(model)

    model.optimizer.inner_optimizer.beta_1 = 0.5

    with pytest.raises(ProgramError, match=r"beta_1 from 0\.9 to 0\.5"):
        settings.check()
