"""Values as plain JSON and back, by the annotations of their dataclasses.

A value that travels to another process, or lies in a file of JSON, is a dataclass of plain values,
and nothing describes it a second time.  It becomes an object with one key a field.  What comes
back is what was sent, or a `WrongValue` that names the place and what was found there.

A field may be a number, a text, a truth, None, an enumeration, a path, a fraction, a dataclass, a
tuple, list, frozenset or mapping of these, or None instead; ``object`` takes any JSON as it is.
An int is a float, as in Python, but a bool is no int.  A field that is missing has its default.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import reprlib
from collections.abc import Callable, Mapping
from fractions import Fraction
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NewType, NoReturn, TypeAlias, TypeVar, Union, get_args, get_origin
from typing import get_type_hints as hints_of

T = TypeVar("T")

JSON_NAME = "json name"
"""The metadata of a field whose key is another one than its name."""

_Reader: TypeAlias = Callable[[Any], Any]

_TEXTS = (Path, Fraction)
"""Types that travel as their text."""

_SCALARS = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    NoneType: "nothing",
}
"""What JSON has itself, in words."""


class WrongValue(ValueError):
    """What was read is no value of the type that was asked for.

    ``places`` lead to the fault: the type, a field of it, and what is below that.
    """

    def __init__(self, reason: str, *places: str) -> None:
        super().__init__("".join(places).removeprefix(".") + reason)
        self._reason = reason
        self._places = places

    @property
    def field(self) -> str:
        """The key of the outermost value that is wrong, or has something wrong in it."""
        return self._places[1].removeprefix(".") if len(self._places) > 1 else ""

    def below(self, place: str) -> WrongValue:
        """Return the error as the value around it sees it."""
        return WrongValue(self._reason, place, *self._places)


def to_plain(value: Any) -> Any:
    """Return what ``json.dumps`` takes for a value."""
    if type(value) in _SCALARS:
        return value
    if dataclasses.is_dataclass(value):
        kind: Any = type(value)
        return {key: to_plain(getattr(value, name)) for name, key in _keys(kind).items()}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list, frozenset)):
        items = [to_plain(item) for item in value]
        return sorted(items) if isinstance(value, frozenset) else items
    found = str(value) if isinstance(value, _TEXTS) else value
    return found.item() if hasattr(found, "item") else found  # NumPy's numbers


def from_plain(kind: type[T], found: object, *, allows_more: bool = False) -> T:
    """Return the value of type ``kind`` that ``to_plain`` made.

    With ``allows_more`` the outermost object may have keys that are no field: a newer holdfast has
    written it, or it is a message around the value.

    Raises:
        WrongValue: a field is missing, unknown or of another type.
    """
    made: Any = kind
    if allows_more and isinstance(found, Mapping):
        found = {key: found[key] for key in _keys(made).values() if key in found}
    value: T = _at(f".{kind.__name__}", functools.partial(_read_object, made), found)
    return value


def encode(value: Any) -> bytes:
    """Return a value as a line of JSON."""
    return json.dumps(to_plain(value), separators=(",", ":")).encode()


def decode(kind: type[T], content: bytes | str) -> T:
    """Return the value that ``encode`` wrote; raises ``ValueError`` for anything else."""
    try:
        return from_plain(kind, json.loads(content))
    except RecursionError:
        raise ValueError("it holds a deep tree") from None


@functools.cache
def _keys(kind: Any) -> dict[str, str]:
    """Return the key of each field of a dataclass."""
    fields = dataclasses.fields(kind)
    return {field.name: field.metadata.get(JSON_NAME, field.name) for field in fields}


@functools.cache
def _reader_of(kind: Any) -> _Reader:
    """Return what makes a value of the type ``kind`` of plain JSON."""
    if kind in (Any, object):
        return _read_anything
    if isinstance(kind, NewType):
        return _reader_of(kind.__supertype__)
    if dataclasses.is_dataclass(kind):
        return functools.partial(_read_object, kind)
    if isinstance(kind, type) and issubclass(kind, (enum.Enum, *_TEXTS)):
        return functools.partial(_read_member, kind)
    if kind in _SCALARS:
        return functools.partial(_read_scalar, kind)
    return _reader_of_several(kind, get_origin(kind), get_args(kind))


def _reader_of_several(kind: Any, origin: Any, arguments: tuple[Any, ...]) -> _Reader:
    if origin in (Union, UnionType) and len(arguments) == 2 and NoneType in arguments:
        (other,) = set(arguments) - {NoneType}
        return functools.partial(_read_optional, _reader_of(other))
    if origin in (list, frozenset) or (origin is tuple and arguments[1:] == (...,)):
        return functools.partial(_read_items, origin, _reader_of(arguments[0]))
    if origin in (dict, Mapping) and arguments[0] is str:
        return functools.partial(_read_mapping, _reader_of(arguments[1]))
    raise TypeError(f"the codec does not know {kind}")


def _read_anything(found: object) -> Any:
    return found


def _at(place: str, read: _Reader, found: object) -> Any:
    try:
        return read(found)
    except WrongValue as error:
        raise error.below(place) from None


def _refuse(found: object, wanted: str) -> NoReturn:
    raise WrongValue(f" is {reprlib.repr(found)}, not {wanted}")


def _read_scalar(kind: type, found: Any) -> Any:
    if type(found) is kind or (kind is float and type(found) is int):
        return found
    _refuse(found, _SCALARS[kind])


def _read_member(kind: Any, found: Any) -> Any:
    is_text = kind in _TEXTS
    if isinstance(found, str) or not is_text:
        try:
            return kind(found)
        except (ValueError, ZeroDivisionError):
            pass
    members = "" if is_text else ", ".join(str(member.value) for member in kind)
    _refuse(found, f"a {kind.__name__}" if is_text else f"one of {members}")


def _read_optional(read: _Reader, found: Any) -> Any:
    return None if found is None else read(found)


def _read_items(kind: type, read: _Reader, found: Any) -> Any:
    if not isinstance(found, (list, tuple)):
        _refuse(found, "a list")
    made: list[Any] = []
    try:
        for item in found:
            made.append(read(item))
    except WrongValue as error:
        raise error.below(f"[{len(made)}]") from None
    return kind(made)


def _read_mapping(read: _Reader, found: Any) -> Any:
    if not isinstance(found, Mapping) or not {*map(type, found)} <= {str}:
        _refuse(found, "an object")
    if read is _read_anything:
        return dict(found)
    made = {}
    try:
        for key, item in found.items():
            made[key] = read(item)
    except WrongValue as error:
        raise error.below(f"[{key!r}]") from None
    return made


@functools.cache
def field_readers(kind: Any) -> tuple[tuple[str, str, _Reader, bool], ...]:
    """Return name, key and reader of each field of a dataclass, and whether it has a default.

    A reader returns the value of plain JSON, or raises ``WrongValue``.
    """
    hints = hints_of(kind)
    return tuple(
        (
            field.name,
            field.metadata.get(JSON_NAME, field.name),
            _reader_of(hints[field.name]),
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING,
        )
        for field in dataclasses.fields(kind)
    )


def _read_object(kind: Any, found: Any) -> Any:
    if not isinstance(found, Mapping):
        _refuse(found, "an object")
    values = {}
    for name, key, read, has_default in field_readers(kind):
        if key in found:
            try:
                values[name] = read(found[key])
            except WrongValue as error:
                raise error.below(f".{key}") from None
        elif not has_default:
            raise WrongValue(" is missing", f".{key}")
    if len(values) < len(found):
        unknown = min(map(str, set(found) - set(_keys(kind).values())))
        raise WrongValue(" is unknown", f".{unknown}")
    return kind(**values)
