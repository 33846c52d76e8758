"""Every mismatch of a JSON field is a sentence that names it."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.manifest import LARGEST_INTEGER, Fields

FIELDS = Fields(
    {"n": LARGEST_INTEGER, "t": "text", "h": "0f", "m": {"a": 1}, "l": [1], "yes": True}, "it"
)


def test_fields_of_the_right_type_are_returned() -> None:
    assert FIELDS.integer("n") == LARGEST_INTEGER
    assert FIELDS.text("t") == "text"
    assert FIELDS.hexadecimal("h", digits=2) == "0f"
    assert FIELDS.mapping("m") == {"a": 1}
    assert FIELDS.array("l") == [1]


def test_mismatches_name_the_field() -> None:
    with pytest.raises(ValueError, match="it has no x"):
        FIELDS.integer("x")
    with pytest.raises(ValueError, match="t of it is not an integer"):
        FIELDS.integer("t")
    with pytest.raises(ValueError, match="yes of it is not an integer"):
        FIELDS.integer("yes")
    with pytest.raises(ValueError, match="n of it is not a string"):
        FIELDS.text("n")
    with pytest.raises(ValueError, match="t of it is not 4 hexadecimal digits"):
        FIELDS.hexadecimal("t", digits=4)
    with pytest.raises(ValueError, match="l of it is not an object"):
        FIELDS.mapping("l")
    with pytest.raises(ValueError, match="m of it is not an array"):
        FIELDS.array("m")
    with pytest.raises(ValueError, match="it is not an object"):
        Fields([], "it")
