"""A script that is run for its model trains nothing, and Keras is its own again afterwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.worker.training_refusal import TrainingRefused, is_refused

pytestmark = pytest.mark.tensorflow

X = np.arange(6, dtype=np.float32)[:, None]


def one_layer() -> Any:
    keras = pytest.importorskip("keras")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    return model


def pipeline() -> Any:
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, X)).batch(4)


@pytest.mark.parametrize("given", ["arrays", "pipeline"])
def test_first_fit_ends_the_script_and_gives_model_and_inputs(given: str) -> None:
    from holdfast.runtime.fit.script_setup import model_only

    model = one_layer()
    before = model.get_weights()
    data = (X, X) if given == "arrays" else (pipeline(),)

    with model_only() as refusal, pytest.raises(TrainingRefused, match="only asked for its model"):
        model.fit(*data)

    assert refusal.training is not None
    assert refusal.training.model is model
    assert np.asarray(refusal.training.first_inputs()).tolist() == [[0.0]]
    assert all(map(np.array_equal, before, model.get_weights()))


def test_fits_before_the_one_that_is_wanted_give_an_empty_history() -> None:
    from holdfast.runtime.fit.script_setup import model_only

    first, second = one_layer(), one_layer()
    before = first.get_weights()

    with model_only(wanted=2) as refusal:
        history = first.fit(X, X, epochs=3)
        assert refusal.training is None
        with pytest.raises(TrainingRefused):
            second.fit(X, X)

    assert history.history == {}
    assert refusal.training is not None
    assert refusal.training.model is second
    assert all(map(np.array_equal, before, first.get_weights()))


def test_fit_without_an_epoch_is_no_training() -> None:
    from holdfast.runtime.fit import keras_fit
    from holdfast.runtime.fit.script_setup import model_only

    told: list[str] = []
    with pytest.MonkeyPatch.context() as patch, model_only() as refusal:
        stages = SimpleNamespace(context=SimpleNamespace(notify=told.append))
        patch.setattr(keras_fit, "stages_of_script", lambda: stages)
        one_layer().fit(X, X, epochs=0)

    assert refusal.trainings == []
    assert len(told) == 1


def test_fit_is_keras_own_again_after_an_error_of_the_script() -> None:
    from holdfast.runtime.fit.script_setup import model_only

    model = one_layer()
    plain = type(model).fit

    def fail() -> None:
        with model_only():
            assert type(model).fit is not plain
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert type(model).fit is plain
    assert len(model.fit(X, X, verbose=0).history["loss"]) == 1
    assert not is_refused(model, lambda: None)
