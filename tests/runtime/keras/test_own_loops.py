"""Loops of a script outside of ``fit`` are refused at their second step, or told of."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras import script_setup
from holdfast.runtime.script.calls import during_training

pytestmark = pytest.mark.tensorflow

X = np.ones((4, 2), np.float32)


class Script:
    """A script of one layer, with two optimizers."""

    def __init__(self) -> None:
        self.model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        self.optimizer, self.other = keras.optimizers.SGD(0.1), keras.optimizers.Adam(0.1)
        self.model.compile(self.optimizer, "mse")
        self.has_trained = False
        self.told: list[str] = []

    def step(self, optimizer: Any = None) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.model(X) ** 2)
        weights = self.model.trainable_variables
        gradients = tape.gradient(loss, weights)
        (optimizer or self.optimizer).apply_gradients(zip(gradients, weights, strict=True))

    @property
    def steps(self) -> int:
        return int(self.optimizer.iterations.numpy())


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    base = keras.src.optimizers.base_optimizer.BaseOptimizer
    function = type(tf.function(tuple))
    for kind, name in (base, "apply"), (function, "__call__"), (keras.Model, "train_on_batch"):
        monkeypatch.setattr(kind, name, getattr(kind, name))
    monkeypatch.setattr(script_setup, "_sources", lambda: ["step()"])
    monkeypatch.setattr(script_setup, "_has_library_of_keras", lambda: False)
    script = Script()
    script_setup.watch_loops(lambda: script.has_trained, script.told.append)
    return script


def _eager(script: Script) -> None:
    for _ in range(3):
        script.step()


def _function(script: Script) -> None:
    step = tf.function(script.step)
    for _ in range(3):
        step()


def _in_turns(script: Script) -> None:
    @tf.function
    def both() -> None:
        script.step()
        script.step(script.other)

    script.optimizer.build(script.model.trainable_variables)
    script.other.build(script.model.trainable_variables)
    for _ in range(3):
        both()


def _built(script: Script) -> Any:
    script.optimizer.build(script.model.trainable_variables)
    return script.step


def _in_graph(script: Script) -> None:
    step = _built(script)

    @tf.function
    def loop() -> None:
        for _ in tf.range(3):
            step()

    loop()


def _over_dataset(script: Script) -> None:
    step, data = _built(script), tf.data.Dataset.range(3)

    @tf.function
    def loop() -> None:
        for _ in data:
            step()

    loop()


LOOPS = pytest.mark.parametrize("loop", [_eager, _function, _in_turns, _in_graph, _over_dataset])


@LOOPS
def test_loop_with_a_tape_is_refused_at_its_second_step(
    script: Script, loop: Callable[[Script], None]
) -> None:
    with pytest.raises(ProgramError) as refused:
        loop(script)

    assert "in a loop of its own with a GradientTape (" in str(refused.value)
    assert "(test_own_loops.py:" in str(refused.value)
    assert "let model.fit(x, y, batch_size=...) run the loop" in str(refused.value)
    assert script.steps <= 1


@LOOPS
def test_loop_before_a_fit_that_stands_in_the_script_is_told_once(
    script: Script, monkeypatch: pytest.MonkeyPatch, loop: Callable[[Script], None]
) -> None:
    monkeypatch.setattr(script_setup, "_sources", lambda: ["model.fit(x, epochs=3)"])

    loop(script)

    assert script.steps == 3
    assert len(script.told) == 1
    assert "each worker does so alone, shares nothing and saves nothing" in script.told[0]


def test_loop_beside_a_library_that_may_call_fit_is_told_and_refused_later(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(script_setup, "_has_library_of_keras", lambda: True)
    for _ in range(100):
        script.step()
    (told,) = script.told
    assert told.endswith("; without a fit it is refused after 100 calls of its step")

    with pytest.raises(ProgramError, match="in a loop of its own"):
        script.step()

    script.has_trained = True
    script.step()
    assert (script.steps, len(script.told)) == (101, 1)


def test_library_that_uses_keras_is_known_by_its_globals(monkeypatch: pytest.MonkeyPatch) -> None:
    library = ModuleType("searches")
    library.__file__ = keras.__file__
    monkeypatch.setitem(sys.modules, "searches", library)
    before = script_setup._has_library_of_keras()
    monkeypatch.setattr(library, "Model", keras.Model, raising=False)

    assert (before, script_setup._has_library_of_keras()) == (False, True)


def test_optimizer_of_an_eager_loop_is_not_kept(script: Script) -> None:
    script.has_trained = True
    found = weakref.ref(script.other)
    for _ in range(3):
        script.step(script.other)
    del script.other
    gc.collect()

    assert found() is None


def test_one_step_of_each_optimizer_is_harmless(script: Script) -> None:
    script.step()
    tf.function(script.step)(script.other)

    assert (script.steps, script.told) == (1, [])


def test_steps_of_hooks_are_left_alone_and_those_after_a_training_are_told(script: Script) -> None:
    with during_training():
        _eager(script)
        _function(script)
    assert (script.steps, script.told) == (6, [])
    script.has_trained = True

    for _ in range(3):
        script.model.train_on_batch(X, X[:, :1])
    _eager(script)

    assert script.steps == 12
    assert len(script.told) == 1
    assert "in a loop over train_on_batch() (" in script.told[0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("model.fit(data)", True),
        ("fit = encoder.fit\nfit(x, y)", True),
        ("model.fitness(data)", False),
        ("tuner.search(x, y)", True),
        ("found.search(x, y, epochs=2)", True),
        ('re.search("a", text)', False),
        ("import sklearn\nfit = model.fit\nfit(x, epochs=2)", True),
        ("import sklearn\nscaler.fit(x)\ntrain(epochs=3)", False),
        ("import sklearn\nscaler.fit(x)\nmodel.fit(batches(x), epochs=2)", True),
        ("holdfast.Trainer(make, data).run()", True),
        ("class Own:\n    def fit(self, x, epochs): ...\n\nOwn().fit(x, epochs=3)", False),
        ("class Own(Model):\n    def fit(self, x): super().fit(x)\n\nOwn().fit(x)", True),
        ("class Trainer:\n    def train(self): ...\n\nTrainer().train()", False),
    ],
)
def test_whether_a_source_calls_fit(source: str, *, expected: bool) -> None:
    assert script_setup.calls_fit(source) == expected
