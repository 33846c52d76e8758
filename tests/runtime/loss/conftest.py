"""TensorFlow and Keras for tests of losses."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def tf() -> SimpleNamespace:
    """TensorFlow, Keras and the module under test, imported only when these tests run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")
    import keras

    from holdfast.runtime.model import keras_replica, tensorflow_settings

    tensorflow_settings.set_numerics(1, 7, deterministic=False)
    return SimpleNamespace(tensorflow=tensorflow, keras=keras, module=keras_replica)
