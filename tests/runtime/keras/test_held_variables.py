"""Variables that no model owns are found, kept by the place where they stand, and put back."""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_harness import replica_of

from holdfast.runtime.keras.held_variables import MOST_BYTES, HeldVariables, encoded, put_back

pytestmark = pytest.mark.tensorflow


def callback(**attributes: Any) -> Any:
    made = keras.callbacks.Callback()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def compiled(loss: Any = "mse") -> Any:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), loss, metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def held(*callbacks: Any, model: Any = None, graphs: Any = ()) -> Any:
    return HeldVariables(callbacks, model or compiled(), graphs)


def test_variables_metrics_and_containers_of_them_are_put_back() -> None:
    def make() -> Any:
        mean = keras.metrics.Mean()
        weights = [tf.Variable(1.0), {"b": keras.Variable(np.zeros(2))}]
        return callback(mean=mean, weights=weights, half=tf.Variable(0.5, dtype=tf.bfloat16))

    one, other = make(), make()
    one.mean.update_state([1.0, 4.0])
    one.weights[0].assign(3.0)
    one.weights[1]["b"].assign([5.0, 6.0])
    one.half.assign(0.25)

    held(other).restore(json.loads(json.dumps(held(one).notes())))

    assert float(other.mean.result()) == 2.5
    assert float(other.weights[0]) == 3.0
    assert np.asarray(other.weights[1]["b"]).tolist() == [5.0, 6.0]
    assert float(other.half) == 0.25


def test_variables_of_the_trained_model_are_left_to_the_replica_and_others_kept_once() -> None:
    model = compiled()
    own = keras.Variable(1.0)
    here = callback(mine=own, model_=model, kernel=model.layers[0].kernel, adam=model.optimizer)

    assert list(held(here, callback(rate=own), model=model).notes()) == ["Callback-1.mine/0"]


def test_variables_that_are_too_large_or_too_many_are_named_with_all_their_bytes() -> None:
    each = 16_000
    large = [tf.Variable(tf.zeros(20_000)), tf.Variable(tf.zeros(30_000))]
    many = [tf.Variable(tf.zeros(each // 4)) for _ in range(MOST_BYTES // each + 2)]
    found = held(callback(tables=large, network=many))

    assert len(found.notes()) == MOST_BYTES // each
    unkept = ["Callback.tables (200000 bytes)", f"Callback.network ({2 * each} bytes)"]
    assert found.unkept() == unkept


def test_variables_that_only_graphs_read_have_names_in_the_order_of_reading() -> None:
    first, second = tf.Variable(2.0, trainable=False), tf.Variable(3.0, trainable=False)
    table = tf.Variable(tf.zeros(20_000), name="table")

    def loss(y_true: Any, y_pred: Any) -> Any:
        return first * tf.square(y_true - y_pred) + second * y_pred + table[0]

    model = compiled(loss)
    x = np.ones((4, 2), np.float32)
    replica = replica_of(model, x, x[:, :1])
    found = held(callback(second=second), model=model, graphs=replica.graphs)

    notes = found.notes()
    first.assign(7.0)
    second.assign(8.0)
    found.restore(notes)

    assert list(notes) == ["Callback-1.second/0", "step/Variable"]
    assert (float(first), float(second)) == (2.0, 3.0)
    assert found.unkept_of_graphs() == ["table (80000 bytes)"]


@pytest.mark.parametrize("other", [[2.0, 2.0], [2]], ids=["shape", "type"])
def test_variable_of_another_kind_begins_as_the_script_makes_it(other: list[Any]) -> None:
    before, now = callback(rate=tf.Variable([1.0])), callback(rate=tf.Variable(other))

    held(now).restore(held(before).notes())

    assert now.rate.numpy().tolist() == other


def test_generators_go_on_and_text_is_left_to_the_script() -> None:
    def make() -> Any:
        dice = tf.random.Generator.from_seed(3)
        return callback(dice=dice, seeds=(keras.random.SeedGenerator(4),), text=tf.Variable("a"))

    one, other = make(), make()
    one.dice.normal([2])
    one.seeds[0].next()

    notes = held(one).notes()
    held(other).restore(json.loads(json.dumps(notes)))

    assert list(notes) == ["Callback-1.dice/0", "Callback-1.seeds/0"]
    assert other.dice.normal([3]).numpy().tolist() == one.dice.normal([3]).numpy().tolist()
    assert np.asarray(other.seeds[0].state).tolist() == np.asarray(one.seeds[0].state).tolist()


def test_values_of_metrics_are_put_back_but_for_large_ones() -> None:
    before = [keras.Variable(np.full(size, 3.0, "f4")) for size in (2, 20_000, 1)]
    now = [keras.Variable(np.zeros(size, "f4")) for size in (2, 20_000, 1)]

    values = json.loads(json.dumps(encoded(before)))
    put_back(now, values)

    assert values[1] is None
    assert [float(np.asarray(variable)[0]) for variable in now] == [3.0, 0.0, 3.0]
