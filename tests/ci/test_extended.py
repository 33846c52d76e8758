"""``ci/test`` leaves out each extended test in all its parts, and ``ci/extended`` runs it."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

CI = Path(__file__).parents[2] / "ci"
EXTENDED = "extended"
OTHERS = ("mpi", "tensorflow", "process", "long", "hypothesis")
_VARIABLE = re.compile(r"^(\w+)=\"([^\"]+)\"$", re.MULTILINE)
_SELECTION = re.compile(r" -m (\"[^\"]+\"|\w+)")
TESTS = [
    {name for name, has in zip(OTHERS, chosen, strict=True) if has}
    for chosen in product([False, True], repeat=len(OTHERS))
]
"""Each set of markers that a test may have beside the one in question."""


def selections(script: str) -> list[str]:
    """Return the marker expressions of a script, with its variables filled in."""
    text = (CI / script).read_text(encoding="utf-8")
    expressions = [found.strip('"') for found in _SELECTION.findall(text)]
    for name, value in _VARIABLE.findall(text):
        expressions = [found.replace(f"${name}", value) for found in expressions]
    assert "$" not in "".join(expressions)
    return expressions


def is_selected(markers: set[str], expression: str) -> bool:
    """Tell whether pytest runs a test with these markers."""
    words = {"and": "and", "or": "or", "not": "not"}
    python = re.sub(r"\w+", lambda word: words.get(word[0], str(word[0] in markers)), expression)
    return bool(eval(python))


def test_extended_test_is_left_out_by_each_part_and_run_by_its_script() -> None:
    parts, (extended,) = selections("test"), selections("extended")

    assert len(parts) == 3
    for markers in TESTS:
        assert not any(is_selected(markers | {EXTENDED}, part) for part in parts), markers
        assert is_selected(markers | {EXTENDED}, extended), markers


def test_every_other_test_is_in_one_part_and_not_in_the_extended() -> None:
    (unit, slow, properties), (extended,) = selections("test"), selections("extended")

    for markers in TESTS:
        assert is_selected(markers, unit) != is_selected(markers, slow), markers
        assert is_selected(markers, properties) == ("hypothesis" in markers), markers
        assert not is_selected(markers, extended), markers


def test_steady_runs_all_tests() -> None:
    assert " -m " not in (CI / "steady").read_text(encoding="utf-8").partition("set -e")[2]
