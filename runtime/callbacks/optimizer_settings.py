"""Settings of an optimizer that graphs hold as constants, watched while callbacks begin.

Keras traces a step when the first one runs.  A replica traces it before, to learn what the
step is made of.  So a plain attribute that ``on_train_begin`` sets, such as ``clipnorm``,
would have effect in Keras and none here.  Variables, such as the learning rate, always have.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.runtime.errors import ProgramError

_PLAIN = (bool, int, float, str, type(None))
_NOT_SET_BY_USERS = ("built", "name")


class OptimizerSettings:
    """The plain attributes of a model's optimizer, as they were when it was traced."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._traced = dict(_settings(model))

    def check(self) -> None:
        """Raise ProgramError if one has changed."""
        for name, value in _settings(self._model):
            known = self._traced.get(name, value)
            if value != known:
                raise ProgramError(
                    f"a callback has set the optimizer's {name} from {known!r} to {value!r} before "
                    "the first step; holdfast has made the graph of a step by then, so it would "
                    f"have no effect; set {name} before fit() is called"
                )


def _settings(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield names and values, those of the optimizer within a loss scale too."""
    optimizer = getattr(model, "optimizer", None)
    while optimizer is not None:
        for name, value in vars(optimizer).items():
            is_setting = not name.startswith("_") and name not in _NOT_SET_BY_USERS
            if is_setting and isinstance(value, _PLAIN):
                yield name, value
        optimizer = getattr(optimizer, "inner_optimizer", None)
