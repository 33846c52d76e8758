"""A scaled loss: an overflow skips the step, as in Keras, and the scale is part of the state."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from extended import shortened
from keras_harness import IMAGES, LABELS, build, bytes_of, contribution, copy_of

from holdfast.runtime.model.replica import Microbatch, OverflowTaker

pytestmark = pytest.mark.tensorflow

TARGETS = LABELS.astype(np.float32)
BATCH = 15


@contextmanager
def policy(tf: SimpleNamespace, name: str) -> Iterator[None]:
    """Build layers with another policy, which is global."""
    before = tf.keras.config.dtype_policy()
    tf.keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        tf.keras.config.set_dtype_policy(before)


def scaled(tf: SimpleNamespace, scale: float, growth: int = 2000) -> Callable[..., Any]:
    """Return a function that makes a classifier in float16, whose loss is scaled by ``scale``."""

    def make(tf: SimpleNamespace) -> Any:
        keras, layers = tf.keras, tf.keras.layers
        with policy(tf, "mixed_float16"):
            model = keras.Sequential(
                [layers.Flatten(), layers.Dense(5, activation="tanh"), layers.Dense(1)]
            )
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=scale, dynamic_growth_steps=growth
        )
        model.compile(optimizer=optimizer, loss="mse")
        return model

    return make


def step(replica: Any, parts: int) -> np.ndarray:
    """Train one batch in microbatches and return the total."""
    total: Any = 0.0
    for ids in np.array_split(np.arange(BATCH), parts):
        with np.errstate(invalid="ignore"):  # inf - inf
            total = total + contribution(replica, Microbatch(IMAGES[ids], TARGETS[ids], 0))
    if not np.isfinite(total).all():
        assert replica.takes_overflow(total)
    replica.apply(total, BATCH)
    return np.asarray(total)


def scale_of(state: dict[str, np.ndarray]) -> tuple[float, int]:
    (scale,) = (float(a) for n, a in state.items() if n.endswith("dynamic_scale"))
    (steps,) = (int(a) for n, a in state.items() if n.endswith("step_counter"))
    return scale, steps


@pytest.mark.parametrize("parts", shortened([1, 2, 3], here=[3]))
def test_float16_trains_as_keras_does(tf: SimpleNamespace, parts: int) -> None:
    replica = build(tf, scaled(tf, 2.0**10), x=IMAGES[:5], y=TARGETS[:5])
    fitted = build(tf, scaled(tf, 2.0**10), x=IMAGES[:5], y=TARGETS[:5])

    for _ in range(4):
        step(replica, parts)
        fitted.model.train_on_batch(IMAGES[:BATCH], TARGETS[:BATCH])

    ours, theirs = replica.state(), fitted.state()
    assert scale_of(ours) == scale_of(theirs) == (2.0**10, 4)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, atol=2e-3, err_msg=name)


def test_large_microbatch_does_not_overflow_by_itself(tf: SimpleNamespace) -> None:
    """The gradients of the mean loss, scaled, fit into float16; times 60 they would not."""
    replica = build(tf, scaled(tf, 2.0**12))
    large = Microbatch(IMAGES[:60], TARGETS[:60], 0)

    assert np.isfinite(contribution(replica, large)).all()


def test_overflow_skips_the_step_and_halves_the_scale(tf: SimpleNamespace) -> None:
    replica = build(tf, scaled(tf, 2.0**40))
    before = copy_of(replica.state())

    total = step(replica, 3)

    after = copy_of(replica.state())
    assert isinstance(replica, OverflowTaker)
    assert not np.isfinite(total).all()
    assert scale_of(after) == (2.0**39, 0)
    changed = {name for name in after if after[name].tobytes() != before[name].tobytes()}
    assert {name.rsplit("/", 1)[1] for name in changed} == {"dynamic_scale"}


def test_scale_falls_until_it_fits_and_grows_again(tf: SimpleNamespace) -> None:
    replica = build(tf, scaled(tf, 2.0**24, growth=3))

    scales = []
    for _ in range(14):
        step(replica, 2)
        scales.append(scale_of(copy_of(replica.state()))[0])

    falls = [b < a for a, b in itertools.pairwise(scales)]
    grows = [b > a for a, b in itertools.pairwise(scales)]
    assert any(falls)
    assert any(grows)
    assert bytes_of(replica.state()) != {}


def test_loss_that_is_not_finite_is_not_an_overflow(tf: SimpleNamespace) -> None:
    replica = build(tf, scaled(tf, 2.0**15))
    bad = contribution(replica, Microbatch(IMAGES[:5], TARGETS[:5] * np.float32(np.nan), 0))

    assert not replica.takes_overflow(bad)


def test_scale_that_has_fallen_to_nothing_is_not_the_cause(tf: SimpleNamespace) -> None:
    replica = build(tf, scaled(tf, 2.0**-30))
    total = contribution(replica, Microbatch(IMAGES[:5], TARGETS[:5], 0))
    total[0] = np.inf

    assert not replica.takes_overflow(total)


def test_without_a_dynamic_scale_an_overflow_ends_the_job(replicas: list[Any]) -> None:
    total = contribution(replicas[0], Microbatch(IMAGES[:5], LABELS[:5], 0))
    total[0] = np.inf

    assert not replicas[0].takes_overflow(total)
