"""The check on Keras's own tests: a list of known differences that may only become shorter."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "ci"))
from keras_own import Outcome, differences, on_all_workers

PASSED, FAILED, BEGUN = Outcome("passed"), Outcome("failed", "1 is not 2"), Outcome("begun")


@pytest.mark.parametrize(
    ("outcomes", "known", "is_whole", "sentences"),
    [
        ({"a": PASSED, "b": FAILED}, {"b": "by design"}, True, []),
        ({"a": FAILED}, {}, True, ["FAILED a: 1 is not 2"]),
        ({"a": PASSED}, {"a": "by design"}, False, ["passes, so take it off the list: a"]),
        ({}, {"a": "by design"}, False, []),
        ({}, {"a": "by design"}, True, ["does not count any more, so take it off the list: a"]),
    ],
)
def test_each_difference_from_the_list_is_named(
    outcomes: dict[str, Outcome], known: dict[str, str], *, is_whole: bool, sentences: list[str]
) -> None:
    assert list(differences(outcomes, known, is_whole=is_whole)) == sentences


def test_a_test_has_passed_if_it_has_on_every_worker() -> None:
    first = {"a": PASSED, "b": PASSED, "c": PASSED, "d": BEGUN}
    second = {"a": PASSED, "b": FAILED}

    assert on_all_workers([first, second], workers=2) == {
        "a": PASSED,
        "b": FAILED,
        "c": BEGUN,
        "d": BEGUN,
    }
