"""Values as JSON: what comes back is what was sent, or an error that names the place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, make_dataclass
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NewType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.system.codec import (
    JSON_NAME,
    WrongValue,
    decode,
    encode,
    from_plain,
    to_plain,
)

Rank = NewType("Rank", int)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 0
    HIGH = 1


@dataclass(frozen=True)
class Inner:
    colour: Colour
    level: Level = Level.LOW


@dataclass(frozen=True)
class Outer:
    rank: Rank
    seconds: float
    text: str
    is_true: bool
    path: Path
    share: Fraction | None
    ranks: tuple[Rank, ...]
    names: list[str]
    steps: frozenset[int]
    inners: tuple[Inner, ...]
    by_name: Mapping[str, Inner | None]
    made_by: str = field(metadata={JSON_NAME: "made by"})
    anything: Mapping[str, object] = field(default_factory=dict)
    inner: Inner | None = None


INNER = Inner(Colour.BLUE, Level.HIGH)
VALUE = Outer(
    Rank(3), 1.5, "é\n", True, Path("/a b"), Fraction(1, 3), (Rank(1),), ["x"], frozenset({2, 1}),
    (INNER,), {"k": INNER, "none": None}, "hand", {"list": [1, None]}, INNER,
)  # fmt: skip
PLAIN: dict[str, Any] = {
    "rank": 3, "seconds": 1.5, "text": "é\n", "is_true": True, "path": "/a b", "share": "1/3",
    "ranks": [1], "names": ["x"], "steps": [1, 2], "inners": [{"colour": "blue", "level": 1}],
    "by_name": {"k": {"colour": "blue", "level": 1}, "none": None}, "made by": "hand",
    "anything": {"list": [1, None]}, "inner": {"colour": "blue", "level": 1},
}  # fmt: skip


def test_value_is_an_object_with_a_key_for_each_field() -> None:
    assert to_plain(VALUE) == PLAIN
    assert list(to_plain(VALUE)) == list(PLAIN)


@given(
    st.builds(
        Outer,
        seconds=st.floats(allow_nan=False),
        path=st.text().map(Path),
        anything=st.dictionaries(st.text(), st.none() | st.booleans() | st.text()),
    )
)
def test_value_comes_back_as_it_was(value: Outer) -> None:
    assert decode(Outer, encode(value)) == value
    assert from_plain(Outer, json.loads(json.dumps(to_plain(value)))) == value


def test_missing_field_has_its_default_and_an_int_is_a_float() -> None:
    fields = {name: PLAIN[name] for name in PLAIN if name not in ("anything", "inner")}

    found = from_plain(Outer, fields | {"seconds": 2})

    assert (found.anything, found.inner, found.seconds) == ({}, None, 2)


def test_unknown_fields_are_left_out_only_where_that_is_asked_for() -> None:
    assert from_plain(Outer, PLAIN | {"new": 1}, allows_more=True) == VALUE
    with pytest.raises(WrongValue, match=r"^Outer\.new is unknown$"):
        from_plain(Outer, PLAIN | {"newer": 1, "new": 1})
    with pytest.raises(WrongValue, match=r"^Outer\.inner\.new is unknown$"):
        from_plain(Outer, PLAIN | {"inner": {"colour": "red", "new": 1}}, allows_more=True)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rank": True}, "Outer.rank is True, not a whole number"),
        ({"rank": 1.0}, "Outer.rank is 1.0, not a whole number"),
        ({"seconds": "1"}, "Outer.seconds is '1', not a number"),
        ({"seconds": False}, "Outer.seconds is False, not a number"),
        ({"text": None}, "Outer.text is None, not a text"),
        ({"is_true": 1}, "Outer.is_true is 1, not true or false"),
        ({"path": 5}, "Outer.path is 5, not a Path"),
        ({"share": "1/0"}, "Outer.share is '1/0', not a Fraction"),
        ({"ranks": "12"}, "Outer.ranks is '12', not a list"),
        ({"ranks": [0, "1"]}, "Outer.ranks[1] is '1', not a whole number"),
        ({"inners": [{"colour": "green"}]}, "Outer.inners[0].colour is 'green', not one of red, "),
        ({"by_name": {"k": {"colour": []}}}, "Outer.by_name['k'].colour is [], not one of red, "),
        ({"by_name": {1: None}}, "Outer.by_name is {1: None}, not an object"),
        ({"inner": {}}, "Outer.inner.colour is missing"),
        ({"inner": [1]}, "Outer.inner is [1], not an object"),
        ({"made by": 1}, "Outer.made by is 1, not a text"),
        ({"text": ["x" * 10_000]}, "Outer.text is ['xxxxxxxxxxxx...xxxxxxxxxxxxx'], not a text"),
    ],
)
def test_error_names_the_place_and_what_was_found_there(
    change: dict[Any, object], words: str
) -> None:
    with pytest.raises(WrongValue) as error:
        from_plain(Outer, PLAIN | change)

    assert str(error.value).startswith(words)
    assert [error.value.field] == list(change)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", "[" * 100_000])
def test_what_is_no_such_json_is_refused(content: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode(Inner, content)


@pytest.mark.parametrize("kind", [int | str, tuple[int, str], Mapping[int, str], set[int], bytes])
def test_type_that_json_would_not_bring_back_is_a_mistake_of_ours(kind: Any) -> None:
    odd: Any = make_dataclass("Odd", [("field", kind)])

    with pytest.raises(TypeError, match="the codec does not know"):
        from_plain(odd, {"field": 1})
