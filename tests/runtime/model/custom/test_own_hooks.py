"""What a script overrides is run or refused, and what is trainable is that of Keras's graphs."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.choose import as_traced, has_own_step, note_steps

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def noted(tf: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let functions of Keras know their steps, for one test."""
    monkeypatch.setattr(tf.keras.Model, "_make_function", tf.keras.Model._make_function)
    note_steps()


def model_of(tf: SimpleNamespace, **own: Any) -> Any:
    kind = type("Own", (tf.keras.Sequential,), own)
    model = kind([tf.keras.Input((3,)), tf.keras.layers.Dense(2), tf.keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def traced(model: Any, told: list[str] | None = None, *, validates: bool = False) -> list[bool]:
    """Return which weights are trained in a ``fit`` that begins now."""
    with as_traced(model, ([] if told is None else told).append, validates=validates):
        return [variable.trainable for variable in model.weights]


def makes_its_own(model: Any, force: bool = False) -> None:  # noqa: FBT001, FBT002
    model.train_function = lambda iterator: {"loss": 0.0}


def runs_another_step(model: Any, force: bool = False) -> None:  # noqa: FBT001, FBT002
    model.test_function = model._make_function(model.predict_step)


@pytest.mark.parametrize(
    ("name", "own", "said"),
    [
        ("make_train_function", makes_its_own, r"Own\.make_train_function\(\).*train_step\(\) do"),
        ("make_test_function", runs_another_step, r"Own\.make_test_function\(\).*test_step\(\) do"),
        ("evaluate", lambda self, *_, **__: {}, r"Own\.evaluate\(\) is the script's own"),
        ("distribute_strategy", property(lambda self: None), r"Own\.distribute_strategy is the"),
    ],
)
@pytest.mark.usefixtures("noted")
def test_hook_that_workers_cannot_share_is_refused_by_name(
    tf: SimpleNamespace, name: str, own: Any, said: str
) -> None:
    with pytest.raises(ProgramError, match=said):
        traced(model_of(tf, **{name: own}), validates=True)


@pytest.mark.usefixtures("noted")
def test_function_of_keras_that_the_script_only_looks_at_is_taken(tf: SimpleNamespace) -> None:
    calls: list[bool] = []

    def make_train_function(model: Any, force: bool = False) -> None:  # noqa: FBT001, FBT002
        calls.append(force)
        tf.keras.Sequential.make_train_function(model, force)

    own = {"make_train_function": make_train_function, "evaluate": lambda self, *_: {}}
    traced(model_of(tf, **own))  # nobody calls evaluate without validation

    assert calls == [False]


@pytest.mark.parametrize(
    "name", ["train_step", "test_step", "trainable_weights", "trainable_variables", "scale_loss"]
)
def test_override_of_how_a_step_is_done_lets_the_step_run_as_it_is(
    tf: SimpleNamespace, name: str
) -> None:
    model = model_of(tf)
    assert not has_own_step(model)
    owner = model.optimizer if name == "scale_loss" else model
    owner.__class__ = type("Changed", (type(owner),), {name: property(lambda self: [])})

    assert has_own_step(model)


def freeze(model: Any) -> None:
    model.trainable = False


def freeze_first(model: Any) -> None:
    model.layers[0].trainable = False


ALL, SOME, NONE = [True] * 4, [False, False, True, True], [False] * 4


@pytest.mark.parametrize(
    ("before", "change", "then", "trained", "words"),
    [
        # A training of Keras keeps its graph, whatever is frozen after its first step.
        (True, freeze, None, ALL, 1),
        (True, freeze_first, None, ALL, 1),
        # Until the model is compiled again, or its function made anew.
        (True, freeze_first, lambda model: model.compile("sgd", "mse"), SOME, 0),
        (True, freeze_first, lambda model: model.make_train_function(force=True), SOME, 0),
        (True, freeze, lambda model: model.compile("sgd", "mse"), NONE, 0),
        # Before the first step Keras looks at the layers, but half a GAN is frozen for the other.
        (False, freeze_first, None, SOME, 0),
        (False, freeze, None, ALL, 1),
    ],
)
@pytest.mark.usefixtures("noted")
def test_what_is_trained_is_what_keras_has_traced(
    tf: SimpleNamespace,
    before: bool,  # noqa: FBT001
    change: Callable[[Any], None],
    then: Callable[[Any], None] | None,
    trained: list[bool],
    words: int,
) -> None:
    model, told = model_of(tf), list[str]()
    if before:
        assert traced(model) == ALL
    change(model)
    if then is not None:
        then(model)
    now = [variable.trainable for variable in model.weights]

    assert [traced(model, told), traced(model)] == [trained, trained]
    assert len(told) == words
    assert [variable.trainable for variable in model.weights] == now


@pytest.mark.usefixtures("noted")
def test_model_that_train_on_batch_has_traced_is_as_it_was_compiled(tf: SimpleNamespace) -> None:
    model = model_of(tf)
    model.make_train_function()
    freeze_first(model)

    assert traced(model) == ALL
