"""TensorFlow, and the replica of a model with its own steps as the module under test."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from holdfast.runtime.run.numerics import Numerics


@pytest.fixture(scope="session")
def tf() -> SimpleNamespace:
    """TensorFlow, Keras and the module under test, imported only when these tests run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")
    import keras

    from holdfast.runtime.model import custom_replica, graphs

    graphs.set_numerics(Numerics.here(threads=1), 7)
    module = SimpleNamespace(KerasReplica=custom_replica.CustomReplica)
    return SimpleNamespace(tensorflow=tensorflow, keras=keras, module=module)
