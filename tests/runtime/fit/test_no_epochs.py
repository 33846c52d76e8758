"""A ``fit`` that asks for no epoch: Keras returns an empty ``History``, and so do we."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow

X = np.ones((4, 2), "float32")
NO_EPOCHS: list[dict[str, Any]] = [
    {"epochs": 0},
    {"epochs": 2, "initial_epoch": 2},
    {"epochs": 2, "initial_epoch": 5},
]


@pytest.mark.parametrize("asked", NO_EPOCHS)
def test_history_is_that_of_keras(monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any]) -> None:
    import keras

    from holdfast.runtime.fit import keras_fit
    from holdfast.runtime.fit.fit_call import FitCall

    told: list[str] = []
    context = SimpleNamespace(notify=told.append)
    monkeypatch.setattr(keras_fit, "stages_of_script", lambda: SimpleNamespace(context=context))
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    before = model.get_weights()
    kerass = model.fit(X, X[:, :1], verbose=0, **asked)

    ours = keras_fit.fit(model, FitCall(X, X[:, :1], **asked))

    assert (ours.history, ours.epoch) == (kerass.history, kerass.epoch) == ({}, [])
    assert ours.params["epochs"] == kerass.params["epochs"]
    assert model.history is ours
    assert ours.model is model
    assert all(map(np.array_equal, before, model.get_weights()))
    assert "trains nothing" in told[0]
