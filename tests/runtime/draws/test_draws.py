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

    from holdfast.runtime.draws.equal_draws import equal_draws
    from holdfast.runtime.draws.microbatch_draws import draws_from

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


def test_operations_draw_as_before_afterwards(tf: SimpleNamespace) -> None:
    drawn(tf, DRAWS["normal"], (7, 11))

    one, other = (np.asarray(DRAWS["normal"](tf.t, tf.keras, 5)) for _ in range(2))

    assert not np.array_equal(one, other)
