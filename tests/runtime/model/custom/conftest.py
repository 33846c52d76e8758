"""Replicas whose steps may mix samples."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest
from keras_harness import replica_of


@pytest.fixture(scope="session")
def tf(tf: SimpleNamespace) -> SimpleNamespace:
    """TensorFlow, Keras and what makes a replica, imported only when these tests run."""
    return SimpleNamespace(**{**vars(tf), "replica": partial(replica_of, mixing="ACCEPTED")})
