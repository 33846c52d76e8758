"""Fixtures that build Keras replicas; the module beside this file can be imported by name."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras_harness import build, convolutional, copy_of, replica_of

from holdfast.runtime.run.numerics import Numerics


@pytest.fixture(scope="session")
def tf() -> SimpleNamespace:
    """TensorFlow, Keras and what makes a replica, imported only when these tests run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")
    import keras

    from holdfast.runtime.model import graphs

    graphs.set_numerics(Numerics.here(threads=1), 7)
    return SimpleNamespace(tensorflow=tensorflow, keras=keras, replica=replica_of)


@pytest.fixture(scope="session")
def workers(tf: SimpleNamespace) -> list[Any]:
    """Replicas of three workers; not to be used without ``replicas``."""
    return [build(tf, convolutional) for _ in range(3)]


@pytest.fixture(scope="session")
def initial(workers: list[Any]) -> dict[str, np.ndarray]:
    """The state that a new worker begins with."""
    return copy_of(workers[0].state())


@pytest.fixture
def replicas(workers: list[Any], initial: dict[str, np.ndarray]) -> list[Any]:
    """Three workers' replicas in their initial state."""
    for replica in workers:
        replica.load(initial)
    return workers
