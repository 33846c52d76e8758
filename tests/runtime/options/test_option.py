"""How one option reads its value from text, TOML and JSON, and how it is named in a refusal."""

from __future__ import annotations

import pytest

from holdfast.runtime.options.option import (
    option,
    read_bytes,
    read_duration,
    read_seconds,
    read_switch,
    read_whole_number,
    read_words,
)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2.5", 2.5), (3, 3.0), ("1e2", 100.0), ("never", 0.0), ("inf", float("inf"))],
)
def test_seconds_are_read_from_text_and_from_toml(value: object, seconds: float) -> None:
    assert read_seconds(value) == seconds


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("90", 90.0), (90, 90.0), (1.5, 1.5), ("90s", 90.0), ("15min", 900.0), ("1.5 h", 5400.0),
        ("2d", 172_800.0), ("1:30", 90.0), ("2:00:00", 7200.0), ("1-12:00:00", 129_600.0),
    ],
)  # fmt: skip
def test_duration_is_read(value: object, seconds: float) -> None:
    assert read_duration(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "5 parsecs", "1:2:3:4", "nan", "inf", True, None])
def test_other_texts_are_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match="is not a time; give seconds"):
        read_duration(value)


@pytest.mark.parametrize(
    ("value", "nbytes"),
    [("200GB", 200 * 10**9), ("1TiB", 2**40), (" 1.5 gib ", 3 * 2**29), ("512", 512), (64, 64)],
)
def test_bytes_are_read_from_text_and_from_toml(value: object, nbytes: int) -> None:
    assert read_bytes(value) == nbytes


@pytest.mark.parametrize("value", ["20%", "many", "-1GB", "0", "1 XB", True, 1.5e30])
def test_other_texts_are_no_bytes(value: object) -> None:
    with pytest.raises(ValueError, match="is not a number of bytes, such as 8GiB"):
        read_bytes(value)


def test_switch_of_toml_is_taken_as_it_is_and_other_words_are_refused() -> None:
    assert read_switch(True) is True
    assert read_switch(False) is False
    for value in ("", "maybe", 2, None):
        with pytest.raises(ValueError, match="is neither yes nor no"):
            read_switch(value)


@pytest.mark.parametrize(("value", "number"), [("7", 7), (7, 7), (7.0, 7), (" 7 ", 7), ("-3", -3)])
def test_whole_number_may_be_written_as_toml_and_people_do(value: object, number: int) -> None:
    assert read_whole_number(value) == number


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("a, b,,  c ,", ("a", "b", "c")),
        (["a", " b ", ""], ("a", "b")),
        (("a",), ("a",)),
        ("", ()),
        ("kill worker=1 step=2", ("kill worker=1 step=2",)),
    ],
    ids=["text", "list", "tuple", "nothing", "blanks within a word"],
)
def test_words_come_without_blanks_around_them_and_without_empty_ones(
    value: object, words: tuple[str, ...]
) -> None:
    assert read_words(",")(value) == words


def test_option_without_a_name_for_its_value_is_no_switch_by_oversight() -> None:
    with pytest.raises(TypeError, match="--greet: an option has a metavar if it takes a value"):
        option("--greet", "What to say at the start.", None)
    with pytest.raises(TypeError, match="and only then"):
        option("--loud", "Whether to say it loudly.", False, read=read_switch, metavar="YES")
