"""Kinds of events and of their fields: what the class of an event says to those who read it.

A journal may be edited by hand, torn by a full disk, or written by another version.  A command that
shows how a run stands must not fail because of one line, so the rest tells all the same:

* a line without a field that readers need is left out;
* a field that need not be there (it has a default, or may be None) is missing if its value makes
  no sense.  Only a wrong count, wrong seconds or wrong workers spoil their line.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, TypeVar

from holdfast.runtime.run.progress import is_metrics

_MOST_SECONDS = 1 << 37
"""No clock shows more, and later moments have no date."""

_MOST = 1 << 63


class Check(NamedTuple):
    """Which values a field takes; a wrong one spoils the line of a strict field."""

    is_one: Callable[[Any], bool]
    is_strict: bool = False


def is_number(value: Any) -> bool:
    """Return whether a value is a number that a clock may show."""
    is_one = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_one and abs(value) < _MOST_SECONDS  # a NaN is not


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return _is_integer(value) and 0 <= value < _MOST


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_count, value))


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(is_number, value))


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _is_ledger(value: Any) -> bool:
    return isinstance(value, dict) and _is_count(value.get("samples"))


def _is_work(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _are_counts(value.get("ids"))
        and all(_is_count(value.get(name)) for name in ("step", "microbatch", "count"))
        and isinstance(value.get("is_validation"), bool)
    )


Count = Annotated[int, Check(_is_count, is_strict=True)]
Counts = Annotated[tuple[int, ...], Check(_are_counts, is_strict=True)]
Seconds = Annotated[float, Check(is_number, is_strict=True)]
ManySeconds = Annotated[tuple[float, ...], Check(_are_numbers)]
Texts = Annotated[tuple[str, ...], Check(_are_texts)]
Metrics = Annotated[Mapping[str, float], Check(is_metrics)]
Ledger = Annotated[Mapping[str, Any], Check(_is_ledger)]
Work = Annotated[Mapping[str, Any], Check(_is_work)]
"""The microbatch that a worker had in hand."""

_PLAIN: Mapping[Any, Check] = {
    str: Check(lambda value: isinstance(value, str)),
    bool: Check(lambda value: isinstance(value, bool)),
    int: Check(_is_integer),
    float: Check(is_number),
}


@dataclass(frozen=True)
class Kind:
    """What holdfast knows of all events of one class."""

    name: str
    """In the journal."""
    type: type[Any]
    words: Callable[[Any], str]
    """Tells an event in a sentence: its method ``words``, or its text."""
    is_told: bool
    """Whether people are told of it; they are not if the status shows it anyway."""
    listed: str | None
    """The field of the report that has every such event; None if the report lists none."""
    hidden: frozenset[str]
    """Fields that the report leaves out."""

    def read(self, line: Mapping[str, Any]) -> Any | None:
        """Return the event in a line, None if the line lacks a field that readers need."""
        values = []
        for name, check, is_needed, otherwise in self.fields:
            value = line.get(name)
            if value is not None and check.is_one(value):
                values.append(tuple(value) if isinstance(value, list) else value)
            elif is_needed or (check.is_strict and name in line):
                return None
            else:
                values.append(otherwise)
        return self.type._make(values)

    @cached_property
    def fields(self) -> tuple[tuple[str, Check, bool, Any], ...]:
        """For each field: what it takes, whether readers need it, and its value if it is missing.

        The hints are read with the first line, and never in a worker.
        """
        hints = typing.get_type_hints(self.type, include_extras=True)
        return tuple(self._field(name, hints[name]) for name in self.type._fields)

    def _field(self, name: str, hint: Any) -> tuple[str, Check, bool, Any]:
        defaults, may_lack = self.type._field_defaults, False
        if typing.get_origin(hint) in (types.UnionType, typing.Union):
            hint, may_lack = typing.get_args(hint)[0], True
        check = _PLAIN[hint] if hint in _PLAIN else typing.get_args(hint)[1]
        return name, check, not may_lack and name not in defaults, defaults.get(name)


EVENTS: dict[str, Kind] = {}
"""Every event that some process of a job records, by its name; `events` fills it."""

KINDS: dict[type[Any], Kind] = {}
"""The same, by class."""

_Class = TypeVar("_Class", bound=type[Any])


def event(
    name: str, *, is_told: bool = True, listed: str | None = None, hidden: Iterable[str] = ()
) -> Callable[[_Class], _Class]:
    """Enter a class into the list; an event that is told has a method ``words``, or a text."""

    def enter(kind: _Class) -> _Class:
        words = getattr(kind, "words", attrgetter("text"))
        EVENTS[name] = KINDS[kind] = Kind(name, kind, words, is_told, listed, frozenset(hidden))
        return kind

    return enter
