"""Metrics that are functions of a batch: shown as means of microbatches, and named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras_harness import build, contribution

from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.choose import LoneReplica
from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

X = np.array([[-3.0], [-2.0], [-1.0], [-4.0], [1.0], [2.0], [3.0], [4.0]], np.float32)
Y = np.array([[0], [1], [0], [0], [1], [1], [0], [1]], np.float32)


def steep(tf: SimpleNamespace, *metrics: Any) -> Any:
    """Return a model that says yes to what is above zero."""
    layers, keras = tf.keras.layers, tf.keras
    model = keras.Sequential(
        [
            keras.Input((1,)),
            layers.Dense(1, activation="sigmoid", kernel_initializer=keras.initializers.Ones()),
        ]
    )
    model.compile("sgd", "binary_crossentropy", metrics=[*metrics, "accuracy"])
    return model


def precision(tf: SimpleNamespace, *, least: float) -> Any:
    """Return the precision of a batch as a function; ``least`` is added to the denominator."""
    ops = tf.keras.ops

    def precision_m(y: Any, p: Any) -> Any:
        return ops.sum(y * ops.round(p)) / (ops.sum(ops.round(p)) + least)

    return precision_m


def parts(replica: Any, *bounds: int) -> Any:
    """Return the settled metrics of a batch whose parts end at ``bounds``."""
    total = np.zeros(replica.shape.metrics)
    for start, stop in zip((0, *bounds), (*bounds, len(X)), strict=True):
        of_part = Microbatch(X[start:stop], Y[start:stop], 0)
        total += contribution(replica, of_part)[replica.shape.gradient :]
    return replica.results(replica.settle(total, len(X)), len(X))


def test_value_that_the_first_samples_do_not_show_is_no_sum(tf: SimpleNamespace) -> None:
    """None of the first samples is said yes to, so the precision is 0, and tells nothing."""
    model = lambda tf: steep(tf, precision(tf, least=1e-7))  # noqa: E731
    replica = build(tf, model, x=X[:4], y=Y[:4])

    found = parts(replica, 5)

    assert found["precision_m"] == pytest.approx(5 / 8 * 1.0 + 3 / 8 * 2 / 3, rel=1e-5)
    assert found["accuracy"] == pytest.approx(6 / 8)
    assert [line for line in replica.notices if "metric 'precision_m' is one value" in line]


def test_batch_that_stays_whole_has_the_value_of_keras(tf: SimpleNamespace) -> None:
    model = lambda tf: steep(tf, precision(tf, least=1e-7))  # noqa: E731

    found = parts(build(tf, model, x=X[:4], y=Y[:4]))

    assert found["precision_m"] == pytest.approx(3 / 4, rel=1e-5)


def test_mean_over_samples_is_told_nothing_of(tf: SimpleNamespace) -> None:
    ops = tf.keras.ops
    model = lambda tf: steep(tf, lambda y, p: ops.mean(ops.abs(y - p)))  # noqa: E731

    assert build(tf, model, x=X, y=Y).notices == ()


def kinds_of_replicas(tf: SimpleNamespace) -> list[Any]:
    model = lambda: steep(tf, precision(tf, least=0.0))  # noqa: E731
    lone = LoneReplica(model(), X[:4], Y[:4], mixing=BatchMixing.ALONE)
    return [tf.module.KerasReplica(model(), X[:4], Y[:4]), lone]


@pytest.mark.parametrize("number", [0, 1], ids=["several", "lone"])
def test_metric_that_is_not_a_number_is_only_shown(tf: SimpleNamespace, number: int) -> None:
    replica = kinds_of_replicas(tf)[number]
    before = [np.array(weight) for weight in replica.model.get_weights()]

    total = contribution(replica, Microbatch(X[:4], Y[:4], 0))

    assert not np.isfinite(total).all()
    assert replica.takes_overflow(total)
    replica.apply(total, 4)
    after = replica.model.get_weights()
    assert all(np.isfinite(weight).all() for weight in after)
    assert not np.array_equal(after[0], before[0])


@pytest.mark.parametrize("number", [0, 1], ids=["several", "lone"])
def test_loss_that_is_not_a_number_ends_the_training(tf: SimpleNamespace, number: int) -> None:
    replica = kinds_of_replicas(tf)[number]
    broken = np.full_like(X[:4], np.nan)

    total = contribution(replica, Microbatch(broken, Y[:4], 0))

    assert not replica.takes_overflow(total)
