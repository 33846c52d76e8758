"""TensorFlow and Keras for tests of losses, and a loss taken apart."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture(scope="session")
def apart(tf: SimpleNamespace) -> Callable[..., Any]:
    """What takes the loss that a function computes of some samples apart."""
    from holdfast.runtime.model.loss import LossKinds, LossParts, noted_terms

    def taken_apart(compute: Callable[[], Any], samples: int, *kinds: Any, **rest: Any) -> Any:
        tape = tf.tensorflow.GradientTape(persistent=True)
        with tape, noted_terms(tape) as terms:
            loss = tf.tensorflow.reduce_sum(compute())
        return LossParts(tape, loss, terms, LossKinds(kinds, **rest), samples)

    return taken_apart
