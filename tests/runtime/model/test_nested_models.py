"""Models of several inputs and outputs, with weights or without targets: steps as in Keras."""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from extended import shortened
from keras_oracle import assert_step_of_keras, stepped_in_parts

from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(11)
N = 20
WIDE = RANDOM.normal(size=(N, 5)).astype(np.float32)
DEEP = RANDOM.integers(7, size=(N, 3))
NAMES = np.array(["red", "green", "blue", "red"] * 5, dtype=object)
RATING = RANDOM.normal(size=(N, 1))  # float64, which becomes float32
KIND = RANDOM.integers(3, size=N)
SAMPLE_WEIGHTS = RANDOM.uniform(0.1, 3.0, size=N).astype(np.float32)


def _two_inputs(tf: SimpleNamespace) -> list[Any]:
    layers = tf.keras.layers
    wide = layers.Input((5,), name="wide")
    deep = layers.Input((3,), dtype="int64", name="deep")
    embedded = layers.Flatten()(layers.Embedding(7, 2)(deep))
    return [wide, deep, layers.Concatenate()([wide, embedded])]


def one_output(tf: SimpleNamespace, **compiled: Any) -> Any:
    wide, deep, both = _two_inputs(tf)
    model = tf.keras.Model([wide, deep], tf.keras.layers.Dense(1)(both))
    model.compile(
        **{"optimizer": tf.keras.optimizers.SGD(0.1, momentum=0.9), "loss": "mse", **compiled}
    )
    return model


def two_outputs(tf: SimpleNamespace, **compiled: Any) -> Any:
    wide, deep, both = _two_inputs(tf)
    layers = tf.keras.layers
    outputs = {
        "rating": layers.Dense(1, name="rating")(both),
        "kind": layers.Dense(3, activation="softmax", name="kind")(both),
    }
    model = tf.keras.Model({"wide": wide, "deep": deep}, outputs)
    losses = {"rating": "mse", "kind": "sparse_categorical_crossentropy"}
    model.compile(
        **{"optimizer": tf.keras.optimizers.SGD(0.1, momentum=0.9), "loss": losses, **compiled}
    )
    return model


@pytest.mark.parametrize("count", shortened([1, 2, 3], here=[3]))
@pytest.mark.parametrize("kind", shortened([list, tuple], here=[list]))
def test_two_inputs_in_a_list(tf: SimpleNamespace, kind: type, count: int) -> None:
    batch = Microbatch(kind([WIDE, DEEP]), RATING, 0)

    assert_step_of_keras(tf, one_output, batch, count=count)


def test_inputs_in_an_ordered_dict_reach_the_model_in_their_order(tf: SimpleNamespace) -> None:
    """Keras sorts the keys of a dict only: so it hands these two inputs over the other way round.

    A `tf.data` pipeline over a CSV file gives such dicts.
    """

    def make(tf: SimpleNamespace) -> Any:
        inputs = {name: tf.keras.Input((1,), name=name) for name in "za"}
        both = tf.keras.layers.Concatenate()([inputs["z"], inputs["a"]])
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(both))
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
        return model

    columns = [("z", WIDE[:, :1]), ("a", 10 * WIDE[:, 1:2])]
    for kind in (OrderedDict, dict):
        assert_step_of_keras(tf, make, Microbatch(kind(columns), RATING, 0), count=2)


@pytest.mark.parametrize("count", shortened([1, 2, 3], here=[3]))
def test_dicts_with_weights_of_losses_and_metrics_of_outputs(
    tf: SimpleNamespace, count: int
) -> None:
    batch = Microbatch({"wide": WIDE, "deep": DEEP}, {"rating": RATING, "kind": KIND}, 0)

    def make(tf: SimpleNamespace) -> Any:
        return two_outputs(
            tf,
            loss_weights={"rating": 0.3, "kind": 2.0},
            metrics={"rating": ["mae"], "kind": ["accuracy"]},
        )

    assert_step_of_keras(tf, make, batch, count=count)


@pytest.mark.parametrize("count", shortened([1, 3], here=[3]))
@pytest.mark.parametrize("kind", ["one array", "one of each output"])
def test_sample_weights_of_outputs(tf: SimpleNamespace, kind: str, count: int) -> None:
    weights = {
        "one array": SAMPLE_WEIGHTS,
        "one of each output": {"rating": SAMPLE_WEIGHTS, "kind": SAMPLE_WEIGHTS[::-1].copy()},
    }[kind]
    x, y = {"wide": WIDE, "deep": DEEP}, {"rating": RATING, "kind": KIND}

    def make(tf: SimpleNamespace) -> Any:
        return two_outputs(
            tf,
            metrics={"kind": ["accuracy"]},
            weighted_metrics={"rating": ["mse"], "kind": ["accuracy"]},
        )

    assert_step_of_keras(tf, make, Microbatch(x, y, 0, weights), count=count)


@pytest.mark.parametrize("count", shortened([1, 2, 3], here=[3]))
def test_sample_weights_of_one_output(tf: SimpleNamespace, count: int) -> None:
    def make(tf: SimpleNamespace) -> Any:
        return one_output(tf, metrics=["mae"], weighted_metrics=["mae"])

    batch = Microbatch((WIDE, DEEP), RATING, 0, SAMPLE_WEIGHTS)

    assert_step_of_keras(tf, make, batch, count=count)


def test_strings_reach_the_model(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        name = layers.Input((1,), dtype="string", name="name")
        wide = layers.Input((5,), name="wide")
        lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
        both = layers.Concatenate()([lookup(name), wide])
        model = tf.keras.Model({"name": name, "wide": wide}, layers.Dense(1)(both))
        model.compile(optimizer="sgd", loss="mse")
        return model

    objects = Microbatch({"name": NAMES[:, None], "wide": WIDE}, RATING, 0)
    fixed = Microbatch({"name": NAMES[:, None].astype("U5"), "wide": WIDE}, RATING, 0)

    one, results = stepped_in_parts(tf, make, objects, count=2)
    other, _ = stepped_in_parts(tf, make, fixed, count=2)

    assert np.isfinite(results["loss"])
    assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in other.items()}


@pytest.mark.parametrize("count", shortened([1, 3], here=[3]))
def test_a_model_without_targets(tf: SimpleNamespace, count: int) -> None:
    """An endpoint layer takes the targets as an input and adds the loss."""

    def make(tf: SimpleNamespace) -> Any:
        class Endpoint(tf.keras.layers.Layer):
            def call(self, outputs: Any, targets: Any) -> Any:
                self.add_loss(tf.keras.ops.mean((outputs - targets) ** 2))
                return outputs

        layers = tf.keras.layers
        wide, targets = layers.Input((5,), name="wide"), layers.Input((1,), name="targets")
        outputs = Endpoint()(layers.Dense(1)(wide), targets)
        model = tf.keras.Model({"wide": wide, "targets": targets}, outputs)
        model.compile(optimizer="adam")
        return model

    batch = Microbatch({"wide": WIDE, "targets": RATING}, None, 0)

    assert_step_of_keras(tf, make, batch, count=count)


def test_validation_takes_nests_too(tf: SimpleNamespace) -> None:
    x, y = {"wide": WIDE, "deep": DEEP}, {"rating": RATING, "kind": KIND}
    replica = tf.module.KerasReplica(two_outputs(tf), x, y, SAMPLE_WEIGHTS)
    sums = np.empty(replica.shape.metrics, np.float32)

    replica.evaluate(Microbatch(x, y, 0, SAMPLE_WEIGHTS), sums)

    weights = {"rating": SAMPLE_WEIGHTS, "kind": SAMPLE_WEIGHTS}
    logs = replica.model.test_on_batch(x, y, weights, return_dict=True)
    assert replica.results(sums.astype(np.float64), N) == pytest.approx(logs, rel=1e-5)
