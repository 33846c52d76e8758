"""Settings that the graph of a step holds as constants, watched while callbacks begin.

Keras traces a step when the first one runs.  A replica traces it before, to learn what the step is
made of.  ``on_train_begin`` may freeze a layer, or change a setting such as ``clipnorm`` or
``rate``.  That would have effect in Keras and none here.  Numbers in variables, such as the
learning rate, always have.

An attribute with the name of an argument of ``__init__`` is a setting, and is refused.  Any
other number may be one that the step reads, or the script's own: there the user is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Number
from typing import Any, NamedTuple

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.model_settings import layers_of, settings_of

_OF_KERAS = frozenset({"stop_training"})
"""What Keras sets itself, and no graph reads."""


class _Attribute(NamedTuple):
    """An attribute of an object, and its value when the step was traced."""

    owner: Any
    name: str
    traced: Any

    @property
    def place(self) -> tuple[int, str]:
        return id(self.owner), self.name

    @property
    def value(self) -> Any:
        return getattr(self.owner, self.name, None)

    @property
    def has_changed(self) -> bool:
        return not _is_same(self.value, self.traced)

    def __str__(self) -> str:
        return (
            f"{self.name.lstrip('_')} of {type(self.owner).__name__} {self.owner.name!r} "
            f"from {self.traced!r} to {self.value!r}"
        )


class TracedSettings:
    """The settings of a model's optimizers and layers, as they were when it was traced."""

    def __init__(self, model: Any) -> None:
        self._settings = [
            _Attribute(owner, name, getattr(owner, name, None))
            for owner, name in settings_of(model)
        ]
        known = {each.place for each in self._settings}
        self._numbers = [each for each in _numbers(model) if each.place not in known]

    def check(self) -> None:
        """Raise ProgramError if a setting has changed."""
        for setting in self._settings:
            if setting.has_changed:
                raise ProgramError(
                    f"a callback has set {setting} before the first step; "
                    "holdfast has made the graph of a step by then, so it would have no effect; "
                    "set it before fit() is called"
                )

    def changed_numbers(self) -> list[str]:
        """Return the numbers that have changed and that the step may read, in words."""
        return [str(number) for number in self._numbers if number.has_changed]


def _numbers(model: Any) -> Iterator[_Attribute]:
    """Yield the numbers that are public attributes of a model and its layers."""
    for owner in (model, *layers_of(model)):
        for name, value in list(vars(owner).items()):
            if isinstance(value, Number) and not name.startswith("_") and name not in _OF_KERAS:
                yield _Attribute(owner, name, value)


def _is_same(value: Any, known: Any) -> bool:
    is_comparable = isinstance(value, Number | str) and isinstance(known, Number | str)
    return value is known or (is_comparable and value == known)
