"""How one option reads its value from text, TOML and JSON, and how it is named in a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.options.job_options import OPTIONS
from holdfast.runtime.options.option import (
    Option,
    at_least,
    option,
    read_path,
    read_seconds,
    read_switch,
    read_text,
    read_whole_number,
    read_words,
)

_WORDS = st.lists(st.text(st.characters(categories=("L", "N")), min_size=1)).map(tuple)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2.5", 2.5), (3, 3.0), ("1e2", 100.0), ("never", 0.0), ("inf", float("inf"))],
)
def test_seconds_are_read_from_text_and_from_toml(value: object, seconds: float) -> None:
    assert read_seconds(value) == seconds


@pytest.mark.parametrize("value", ["", "soon", "Never", True, None, [1]])
def test_what_is_no_number_of_seconds_is_refused_as_it_was_written(value: object) -> None:
    with pytest.raises(ValueError, match="is not a number of seconds") as refusal:
        read_seconds(value)

    assert str(refusal.value).startswith(repr(value))


@pytest.mark.parametrize("word", ["1", "true", "yes", "on", "y", "t"])
def test_word_for_yes_counts_in_any_case_and_between_blanks(word: str) -> None:
    assert read_switch(f" {word.upper()} ") is True


@pytest.mark.parametrize("word", ["0", "false", "no", "off", "n", "f"])
def test_word_for_no_counts_in_any_case_and_between_blanks(word: str) -> None:
    assert read_switch(f" {word.upper()} ") is False


def test_switch_of_toml_is_taken_as_it_is_and_other_words_are_refused() -> None:
    assert read_switch(True) is True
    assert read_switch(False) is False
    for value in ("", "maybe", 2, None):
        with pytest.raises(ValueError, match="is neither yes nor no"):
            read_switch(value)


@pytest.mark.parametrize(("value", "text"), [("epoch", "epoch"), (100, "100"), (1.5, "1.5")])
def test_number_that_toml_makes_of_a_text_is_text_again(value: object, text: str) -> None:
    assert read_text(value) == text


@pytest.mark.parametrize("value", [True, None, ["a"], {"a": 1}])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a text"):
        read_text(value)


def test_path_is_taken_as_it_is_written() -> None:
    assert read_path("../a b") == Path("../a b")
    assert read_path(Path("/x")) == Path("/x")


@pytest.mark.parametrize("value", ["", 7, None, b"/x", ["/x"]])
def test_what_is_no_path_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a path"):
        read_path(value)


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


@pytest.mark.parametrize("value", [7, None, [1, 2], ["a", None]])
def test_what_is_no_list_of_words_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="is not a list of words"):
        read_words(",")(value)


@given(_WORDS, st.sampled_from([",", ";"]))
def test_words_that_are_joined_are_read_as_they_were(words: tuple[str, ...], mark: str) -> None:
    assert read_words(mark)(mark.join(words)) == read_words(mark)(list(words)) == words


def test_option_with_a_short_flag_is_named_by_both() -> None:
    assert OPTIONS["workers"].label == "-n (workers)"
    assert OPTIONS["save_every"].label == "--save-every"


def test_refusal_is_one_sentence_in_which_the_place_of_the_value_comes_first() -> None:
    count = Option(("-n", "--workers"), "", read_whole_number, check=at_least(2))

    with pytest.raises(ValueError, match=r"^-n \(workers\) must be at least 2, got 1$"):
        count.refuse(1)
    with pytest.raises(ValueError, match=r"^HOLDFAST_WORKERS must be at least 2, got 1$"):
        count.refuse(1, "HOLDFAST_WORKERS")
    count.refuse(2)


def test_reason_that_is_a_sentence_of_its_own_follows_after_a_colon() -> None:
    def check(value: object) -> None:
        raise ValueError(f"{value!r} is odd")

    with pytest.raises(ValueError, match=r"^--rule: 'x' is odd$"):
        Option(("--rule",), "", read_text, check=check).refuse("x")


def test_value_that_was_left_open_is_never_refused() -> None:
    Option(("--scrub",), "", read_seconds, check=at_least(1)).refuse(None)
    Option(("--any",), "", read_text).refuse(-1)


def test_option_without_a_name_for_its_value_is_no_switch_by_oversight() -> None:
    with pytest.raises(TypeError, match="--greet: an option has a metavar if it takes a value"):
        option("--greet", "What to say at the start.", None)
    with pytest.raises(TypeError, match="and only then"):
        option("--loud", "Whether to say it loudly.", False, read=read_switch, metavar="YES")


def test_flag_is_a_switch_where_it_takes_no_value() -> None:
    assert OPTIONS["shrink"].is_switch
    assert not OPTIONS["run_dir"].is_switch
