"""Random operations while a step is traced or tried: of a microbatch's seed, or equal."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from holdfast.runtime.errors import ProgramError

pytestmark = pytest.mark.tensorflow

Draw = Callable[[Any, Any, int], Any]

DRAWS: dict[str, Draw] = {
    "normal": lambda t, keras, n: t.random.normal((n, 40)),
    "uniform": lambda t, keras, n: t.random.uniform((n, 40), -1.0, 1.0),
    "truncated": lambda t, keras, n: t.random.truncated_normal((n, 40)),
    "int32": lambda t, keras, n: t.random.uniform((n, 40), 3, 1000, t.int32),
    "int64": lambda t, keras, n: t.random.uniform((n, 40), 3, 1000, t.int64),
    "categorical": lambda t, keras, n: t.random.categorical(t.zeros((n, 9)), 40),
    "gamma": lambda t, keras, n: t.random.gamma((n, 40), 2.0),
    "poisson": lambda t, keras, n: t.random.poisson((n, 40), 9.0),
    "dropout": lambda t, keras, n: t.nn.dropout(t.ones((n, 40)), 0.5),
    "keras": lambda t, keras, n: keras.random.normal((n, 40)),
    "keras integers": lambda t, keras, n: keras.random.randint((n, 40), 3, 1000),
}


@pytest.fixture(scope="module")
def tf() -> SimpleNamespace:
    """TensorFlow, Keras and the modules under test, imported only when these tests run."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    tensorflow = pytest.importorskip("tensorflow")
    import keras

    from holdfast.runtime.model.random_ops import draws_from, equal_draws

    return SimpleNamespace(t=tensorflow, keras=keras, equal=equal_draws, of_seed=draws_from)


def drawn(tf: SimpleNamespace, draw: Draw, seed: tuple[int, int]) -> list[np.ndarray]:
    """Return what two operations draw in a graph."""

    @tf.t.function(autograph=False)
    def graph(given: Any) -> Any:
        with tf.of_seed(given):
            return draw(tf.t, tf.keras, 5), draw(tf.t, tf.keras, 5)

    return [np.asarray(found) for found in graph(tf.t.constant(seed, tf.t.int64))]


@pytest.mark.parametrize("name", DRAWS)
def test_draw_depends_on_the_seed_and_on_the_number_of_the_operation(
    tf: SimpleNamespace, name: str
) -> None:
    first, second = drawn(tf, DRAWS[name], (7, 11))
    again, _ = drawn(tf, DRAWS[name], (7, 11))
    other, _ = drawn(tf, DRAWS[name], (8, 11))

    np.testing.assert_array_equal(again, first)
    assert first.shape == (5, 40)
    assert not np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_shuffle_keeps_its_elements(tf: SimpleNamespace) -> None:
    first, second = drawn(tf, lambda t, keras, n: t.random.shuffle(t.range(100)), (7, 11))

    assert sorted(first) == sorted(second) == list(range(100))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", DRAWS)
def test_each_sample_draws_the_same_in_a_trial(tf: SimpleNamespace, name: str) -> None:
    with tf.equal():
        whole = np.asarray(DRAWS[name](tf.t, tf.keras, 5))
    with tf.equal():
        part = np.asarray(DRAWS[name](tf.t, tf.keras, 2))

    np.testing.assert_array_equal(whole[:2], part)
    np.testing.assert_array_equal(whole[2:4], part)


def test_draws_within_a_loop_are_refused(tf: SimpleNamespace) -> None:
    """All rounds would draw the same numbers: an augmentation of each image, say."""

    def draw(t: Any, keras: Any, n: int) -> Any:
        return t.map_fn(lambda x: x + t.random.normal(()), t.zeros((n,)))

    with pytest.raises(ProgramError, match="within a loop of TensorFlow"):
        drawn(tf, draw, (7, 11))


@pytest.mark.parametrize("name", ["normal", "uniform", "truncated", "int32"])
def test_operations_of_a_trial_draw_unlike_each_other_and_alike_again(
    tf: SimpleNamespace, name: str
) -> None:
    trials = []
    for _ in range(2):
        with tf.equal():
            trials.append([np.asarray(DRAWS[name](tf.t, tf.keras, 2)) for _ in range(2)])

    np.testing.assert_array_equal(trials[0], trials[1])
    assert not np.array_equal(*trials[0])
    assert len(np.unique(trials[0][0])) > 20


STILL: dict[str, tuple[Callable[[Any, Any, Any], Any], list[Any]]] = {
    "gamma": (lambda t, keras, x: t.random.gamma((2,), x), [[2.0, 1.0, 3.0]] * 2),
    "poisson": (lambda t, keras, x: t.random.poisson((2,), x), [[2.0, 1.0, 3.0]] * 2),
    "shuffle": (lambda t, keras, x: t.random.shuffle(x), [2.0, 1.0, 3.0]),
    "shuffle of keras": (lambda t, keras, x: keras.random.shuffle(x, seed=1), [2.0, 1.0, 3.0]),
    "categorical": (lambda t, keras, x: t.random.categorical([x, -x], 2), [[2, 2], [1, 1]]),
    "stateless categorical": (
        lambda t, keras, x: keras.random.categorical(t.stack([x, -x]), 2, seed=1),
        [[2, 2], [1, 1]],
    ),
    "dropout": (lambda t, keras, x: keras.layers.Dropout(0.9)(x, training=True), [2.0, 1.0, 3.0]),
}


@pytest.mark.parametrize("name", STILL)
def test_trial_draws_what_is_likely_and_drops_nothing(tf: SimpleNamespace, name: str) -> None:
    draw, expected = STILL[name]

    with tf.equal():
        found = np.asarray(draw(tf.t, tf.keras, tf.t.constant([2.0, 1.0, 3.0])))

    assert found.tolist() == expected


def test_normalisation_of_batches_does_not_see_the_batch_in_a_trial(tf: SimpleNamespace) -> None:
    layer, x = tf.keras.layers.BatchNormalization(), tf.t.constant([[1.0, 2.0], [5.0, 9.0]])
    expected = np.asarray(layer(x, training=False))

    with tf.equal():
        found = np.asarray(layer(x, training=True))

    np.testing.assert_array_equal(found, expected)
    assert np.asarray(layer.moving_mean).tolist() == [0.0, 0.0]
    assert not np.allclose(layer(x, training=True), expected)


def test_draw_of_a_shape_that_is_not_known_is_one_number(tf: SimpleNamespace) -> None:
    @tf.t.function(input_signature=[tf.t.TensorSpec((None, 2))], autograph=False)
    def graph(x: Any) -> Any:
        with tf.equal():
            return tf.t.random.normal(tf.t.shape(x))

    found = np.asarray(graph(tf.t.zeros((3, 2))))

    assert found.shape == (3, 2)
    assert len(np.unique(found)) == 1


def test_operations_draw_as_before_after_a_trial_that_fails(tf: SimpleNamespace) -> None:
    with pytest.raises(ZeroDivisionError), tf.equal():
        raise ZeroDivisionError

    for name in ("normal", "keras"):
        rows = np.asarray(DRAWS[name](tf.t, tf.keras, 5))
        assert len(np.unique(rows, axis=0)) == 5
