"""The fields of a JSON object, each checked for the type that its reader asks for."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import cast

LARGEST_INTEGER = 2**63 - 1
_HEXADECIMAL = frozenset(string.digits + "abcdef")


class Fields:
    """Typed access to a JSON object; every mismatch is a ``ValueError`` that names the field."""

    def __init__(self, value: object, what: str) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{what} is not an object")
        self._fields = cast("Mapping[str, object]", value)
        self._what = what

    def integer(self, name: str) -> int:
        """Return an integer from 0 to 2**63 - 1."""
        value = self._value(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"{name} of {self._what} is not an integer")
        if not 0 <= value <= LARGEST_INTEGER:
            raise ValueError(f"{name} of {self._what} is out of range: {value}")
        return value

    def text(self, name: str) -> str:
        """Return a string."""
        value = self._value(name)
        if not isinstance(value, str):
            raise ValueError(f"{name} of {self._what} is not a string")
        return value

    def hexadecimal(self, name: str, *, digits: int) -> str:
        """Return a string of exactly ``digits`` lower-case hexadecimal digits."""
        value = self.text(name)
        if len(value) != digits or not _HEXADECIMAL.issuperset(value):
            raise ValueError(f"{name} of {self._what} is not {digits} hexadecimal digits")
        return value

    def mapping(self, name: str) -> Mapping[str, object]:
        """Return an object."""
        value = self._value(name)
        if not isinstance(value, dict):
            raise ValueError(f"{name} of {self._what} is not an object")
        return cast("Mapping[str, object]", value)

    def array(self, name: str) -> list[object]:
        """Return an array."""
        value = self._value(name)
        if not isinstance(value, list):
            raise ValueError(f"{name} of {self._what} is not an array")
        return value

    def _value(self, name: str) -> object:
        if name not in self._fields:
            raise ValueError(f"{self._what} has no {name}")
        return self._fields[name]
