"""The user's script is run for its model alone, and this process stays as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.tools.exporting import ModelSource

MODELS = """
import sys

class Model:
    def __init__(self, name, built=True, optimizer=None):
        self.name, self.built, self.optimizer = name, built, optimizer
        self.trainable_variables, self.calls = ["kernel"], []

    def build(self, shape):
        self.calls.append(shape)

    def __call__(self, inputs):
        self.calls.append(inputs.tolist())

class Optimizer:
    built = False

    def build(self, variables):
        self.variables = list(variables)

def model():
    return Model("of the function")

def shapeless():
    return Model("shapeless", built=False, optimizer=Optimizer())
"""
TRAINING = """
import numpy as np
from holdfast import ArrayData, Trainer
data = ArrayData(np.array([[4.0], [5.0]], np.float32), np.zeros(2, np.float32))
Trainer(shapeless, data, global_batch=1, epochs=1).run()
Trainer(model, data, global_batch=1, epochs=1).run()
raise AssertionError("the script goes on behind its trainings")
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A path whose script may import its neighbours, which are forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")
    yield tmp_path / "train.py"
    for name in ("holdfast_model", "a_neighbour"):
        sys.modules.pop(name, None)


def build(script: Path, text: str, function: str | None = "model", **options: Any) -> Any:
    script.write_text(text)
    stage = options.pop("stage", 1)
    return ModelSource(script, function, **options).build(stage)


@pytest.mark.parametrize(("text", "function"), [("", None), (":model", "model")])
def test_script_is_named_alone_or_with_its_function(
    text: str, function: str | None, script: Path
) -> None:
    script.touch()

    source = ModelSource.parse(f"{script}{text}", (28, 28))

    assert source == ModelSource(script, function, (28, 28))
    assert str(source) == f"{script}{text}"


@pytest.mark.parametrize("function", ["", "a b", "a.b", "model()"])
def test_name_that_no_function_can_have_is_refused(function: str, script: Path) -> None:
    script.touch()

    with pytest.raises(UsageError) as caught:
        ModelSource.parse(f"{script}:{function}")

    assert str(caught.value) == (f"--model is '{script}:{function}'; give it as script.py:function")


@pytest.mark.parametrize("text", ["{}", "{}:model"])
def test_script_that_is_missing_or_a_folder_is_refused(text: str, tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none.py"):
        with pytest.raises(UsageError, match=rf"^{path} does not exist; give --model as "):
            ModelSource.parse(text.format(path))


def test_function_is_called_without_what_stands_behind_the_guard(script: Path) -> None:
    guard = "\nif __name__ == '__main__':\n    raise AssertionError\n"

    assert build(script, MODELS + guard).name == "of the function"


def test_script_alone_is_run_as_the_main_program(script: Path) -> None:
    guarded = "if __name__ == '__main__':\n" + TRAINING.replace("\n", "\n    ")

    assert build(script, f"{MODELS}{guarded}", None).name == "shapeless"


def test_script_finds_itself_its_neighbours_and_no_arguments(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["holdfast", "export", "--to", "w.npz"])
    (script.parent / "a_neighbour.py").write_text("WORD = 'hello'")
    telling = (
        "import a_neighbour\n"
        "def model():\n"
        "    return Model([a_neighbour.WORD, sys.argv, sys.modules[__name__].__file__])\n"
    )

    found = build(script, MODELS + telling)

    assert found.name == ["hello", [str(script)], str(script)]
    assert sys.argv == ["holdfast", "export", "--to", "w.npz"]


def test_main_program_is_this_one_again_after_a_script_that_fails(script: Path) -> None:
    before, argv = sys.modules["__main__"], sys.argv

    with pytest.raises(ProgramError):
        build(script, "raise ValueError", None)

    assert sys.modules["__main__"] is before
    assert sys.argv is argv


@pytest.mark.parametrize(
    ("stage", "name"), [(1, "shapeless"), (2, "of the function")], ids=["first", "second"]
)
def test_script_that_trains_twice_gives_the_model_of_the_wanted_training(
    stage: int, name: str, script: Path
) -> None:
    assert build(script, MODELS + TRAINING, None, stage=stage).name == name


def test_script_that_never_comes_to_the_wanted_training_is_refused(script: Path) -> None:
    once = TRAINING.replace("Trainer(model", "#").partition("raise")[0]

    with pytest.raises(UsageError, match=r"train\.py does not come to model\.fit\(\) or to a "):
        build(script, MODELS + once, None, stage=2)


def test_shape_of_one_sample_builds_model_and_optimizer(script: Path) -> None:
    found = build(script, MODELS, "shapeless", input_shape=(28, 28))

    assert found.calls == [(None, 28, 28)]
    assert found.optimizer.variables == ["kernel"]


def test_data_of_the_training_build_a_model_that_knows_no_shape(script: Path) -> None:
    found = build(script, MODELS + TRAINING, None)

    assert found.calls == [[[4.0]]]
    assert found.optimizer.variables == ["kernel"]


def test_built_model_is_not_built_again(script: Path) -> None:
    found = build(script, MODELS, "model", input_shape=(28, 28))

    assert found.calls == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("raise KeyError('odd')", "train.py raised KeyError: 'odd'"),
        ("raise SystemExit(3)", "train.py ended the program with exit code 3"),
        ("def model(): raise SystemExit", "train.py:model ended the program with exit code None"),
        ("def model(): return 1 / 0", "train.py:model raised ZeroDivisionError"),
    ],
)
def test_fault_of_the_users_code_says_where_it_was(text: str, complaint: str, script: Path) -> None:
    with pytest.raises(ProgramError) as caught:
        build(script, text)

    assert complaint in str(caught.value)


def test_error_while_the_model_is_built_is_the_users(script: Path) -> None:
    broken = "\nModel.build = None\n"

    with pytest.raises(ProgramError, match=r"^building the model of .*train\.py:shapeless raised "):
        build(script, MODELS + broken, "shapeless", input_shape=(3,))


def test_refusal_of_holdfast_itself_reaches_the_user_as_it_is(script: Path) -> None:
    text = "from holdfast.runtime.errors import UsageError\nraise UsageError('mine')"

    with pytest.raises(UsageError, match=r"^mine$"):
        build(script, text)


def test_result_that_is_no_model_is_named_with_its_type(script: Path) -> None:
    with pytest.raises(UsageError, match=r"train\.py:model makes a dict, which is no Keras model"):
        build(script, "def model(): return {}")
