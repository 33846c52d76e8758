"""TensorFlow, and replicas whose steps may mix samples."""

from __future__ import annotations

import os
from functools import partial
from types import SimpleNamespace

import pytest
from keras_harness import replica_of

from holdfast.runtime.run.numerics import Numerics


@pytest.fixture(scope="session")
def tf() -> SimpleNamespace:
    """TensorFlow, Keras and what makes a replica, imported only when these tests run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")
    import keras

    from holdfast.runtime.model import graphs

    graphs.set_numerics(Numerics.here(threads=1), 7)
    return SimpleNamespace(
        tensorflow=tensorflow, keras=keras, replica=partial(replica_of, mixing="ACCEPTED")
    )
