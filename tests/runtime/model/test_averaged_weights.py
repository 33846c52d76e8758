"""An optimizer with averaged weights ends with them, as ``fit`` does."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from extended import shortened
from keras_harness import IMAGES, LABELS, build, bytes_of, contribution, copy_of, dense

from holdfast.runtime.model.replica import Finishing, Microbatch

pytestmark = pytest.mark.tensorflow

BATCH, STEPS = 15, 5


def averaging(tf: SimpleNamespace, overwrite: int | None = None) -> Callable[..., Any]:
    def make(tf: SimpleNamespace) -> Any:
        optimizer = tf.keras.optimizers.Adam(
            0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=overwrite
        )
        return dense(tf, optimizer=optimizer)

    return make


def train(replica: Any, parts: int) -> None:
    for _ in range(STEPS):
        total: Any = 0.0
        for ids in np.array_split(np.arange(BATCH), parts):
            total = total + contribution(replica, Microbatch(IMAGES[ids], LABELS[ids], 0))
        replica.apply(total, BATCH)


@pytest.mark.parametrize("overwrite", [None, 2])
@pytest.mark.parametrize("parts", shortened([1, 2, 3], here=[3]))
def test_training_ends_with_the_averages_of_fit(
    tf: SimpleNamespace, parts: int, overwrite: int | None
) -> None:
    replica = build(tf, averaging(tf, overwrite))
    fitted = build(tf, averaging(tf, overwrite))

    train(replica, parts)
    before = copy_of(replica.state())
    replica.finish()
    fitted.model.fit(
        IMAGES[:BATCH], LABELS[:BATCH], batch_size=BATCH, epochs=STEPS, shuffle=False, verbose=0
    )

    assert isinstance(replica, Finishing)
    ours = replica.state()
    assert bytes_of(ours) != bytes_of(before)
    for name, array in fitted.state().items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_averaging_twice_is_averaging_once(tf: SimpleNamespace) -> None:
    replica = build(tf, averaging(tf))
    train(replica, 2)

    replica.finish()
    once = copy_of(replica.state())
    resumed = build(tf, averaging(tf))
    resumed.load(once)
    resumed.finish()

    assert bytes_of(resumed.state()) == bytes_of(once)


def test_without_averages_the_end_changes_nothing(replicas: list[Any]) -> None:
    before = bytes_of(replicas[0].state())

    replicas[0].finish()

    assert bytes_of(replicas[0].state()) == before
