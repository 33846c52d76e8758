"""An error of the script in a checkpoint, and the error that is made of it after a relaunch."""

from __future__ import annotations

import json

import numpy as np
import pytest

from holdfast.runtime.keras.callback_run import kind_of, made_again, note_of

pytestmark = pytest.mark.tensorflow


class Pruned(Exception):
    """An error with an argument that its class needs, and a field."""

    def __init__(self, loss: float, *, epoch: int) -> None:
        super().__init__(loss)
        self.epoch = epoch

    def __str__(self) -> str:
        return f"loss {self.args[0]} at epoch {self.epoch}"


def kept(error: Exception) -> Exception:
    return made_again(json.loads(json.dumps(note_of(error), allow_nan=False)))


@pytest.mark.parametrize(
    "error",
    [
        Pruned(7.5, epoch=2),
        ValueError(),
        KeyError("rate"),
        OSError(28, "No space left on device", "a.txt"),
        ValueError(float("nan"), (1, 2), np.float32(0.5)),
    ],
    ids=["of the script", "empty", "key", "of the system", "numbers"],
)
def test_error_is_made_again_as_it_was(error: Exception) -> None:
    again = kept(error)

    assert (type(again), str(again)) == (type(error), str(error))
    assert (repr(again.args), repr(vars(again))) == (repr(error.args), repr(vars(error)))


def test_class_that_only_a_function_knows_is_found_and_of_two_the_newer_one() -> None:
    def define() -> type[Exception]:
        class Local(Exception):
            pass

        return Local

    older, newer = define(), define()

    assert type(kept(older("x"))) is newer


def test_error_of_a_class_that_is_not_there_is_one_of_the_next_class_that_is() -> None:
    note = note_of(Pruned(1.0, epoch=1))
    note["classes"][0] = "elsewhere.Pruned"

    assert type(made_again(note)) is Exception


def test_argument_that_is_not_plain_is_a_text() -> None:
    assert kept(ValueError(ValueError("inner"))).args == ("inner",)


def test_kinds_are_names_of_classes_and_short() -> None:
    long = type("E" * 300, (Exception,), {})

    assert kind_of(ValueError("x")) == kind_of(ValueError("y")) == b"builtins.ValueError"
    assert len(kind_of(long())) == 255
