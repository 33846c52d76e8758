"""``holdfast.fit`` takes the arguments of Keras, and says so where it does not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.fit.fit_call import FitCall, fit

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls that come to the training."""
    pytest.importorskip("keras")
    from holdfast.runtime.fit import keras_fit

    found: list[Any] = []

    def train(model: Any, call: FitCall) -> str:
        found.append((model, call))
        return "the history"

    monkeypatch.setattr(keras_fit, "fit", train)
    return found


def test_arguments_by_place_and_by_name_are_those_of_keras(calls: list[Any]) -> None:
    assert fit("model", "x", "y", 8, 3, verbose=2) == "the history"
    assert calls == [("model", FitCall("x", "y", batch_size=8, epochs=3, verbose=2))]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epoch": 3}, "got an unexpected keyword argument 'epoch'"),
        ({"workers": 2}, "got an unexpected keyword argument 'workers'"),
        ({"x": 1}, "got multiple values for argument 'x'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_argument_that_keras_does_not_take_trains_nothing(
    calls: list[Any], arguments: dict[str, Any], said: str
) -> None:
    words = rf"^holdfast\.fit\(\) takes the arguments of Keras: Model\.fit\(\) {said}"

    with pytest.raises(ProgramError, match=words):
        fit("model", "x", **arguments)
    assert calls == []
