"""Generators go on from states that were kept as JSON."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from holdfast.runtime.worker.script_draws import go_on_from, random_states


def draw() -> list[float]:
    """Draw from each generator, normal numbers too: they come in pairs, and one is kept."""
    return [random.random(), random.gauss(0, 1), np.random.normal(), float(np.random.randint(99))]


def test_numbers_are_drawn_again() -> None:
    random.seed(3)
    np.random.seed(3)
    draw()
    states = json.dumps(random_states())

    first = [draw(), draw()]
    go_on_from(json.loads(states))

    assert [draw(), draw()] == first


@pytest.mark.tensorflow
def test_numbers_of_keras_are_drawn_again_by_another_process_too() -> None:
    import keras

    keras.utils.set_random_seed(5)
    keras.random.normal((2,))
    states = json.loads(json.dumps(random_states()))
    first = [float(value) for value in keras.random.normal((2,))]
    after = draw()
    keras.utils.set_random_seed(5)  # as in a new process, nobody has drawn yet

    go_on_from(states)

    assert [float(value) for value in keras.random.normal((2,))] == first
    assert draw() == after


def test_generator_that_the_script_has_put_in_place_is_left_alone() -> None:
    own = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        states = random_states()
        before = np.random.get_state(legacy=False)
        go_on_from(states)
        after = np.random.get_state(legacy=False)
    finally:
        np.random.set_bit_generator(own)

    assert "numpy" not in states
    assert after == before
