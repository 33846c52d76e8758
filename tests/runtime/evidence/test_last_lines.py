"""The newest lines are kept, each within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.evidence.stacks import MOST_LINES, LastLines


def test_newest_lines_are_kept_in_order() -> None:
    last = LastLines()

    last.take(b"first\n")
    last.take(b"".join(b"line %d\n" % n for n in range(MOST_LINES)))

    assert last.lines == tuple(f"line {n}" for n in range(MOST_LINES))


def test_end_of_a_progress_bar_is_kept() -> None:
    last = LastLines()

    last.take(b"\r".join(b"%d of 1000" % n for n in range(1000)) + b"\n")

    (line,) = last.lines
    assert line.endswith("999 of 1000")
    assert len(line) == 300


@given(st.lists(st.lists(st.binary(max_size=9).map(lambda b: b.replace(b"\n", b"")), max_size=60)))
def test_lines_are_the_last_of_all_that_are_not_empty(chunks: list[list[bytes]]) -> None:
    last, everything = LastLines(), []
    for chunk in chunks:
        last.take(b"".join(line + b"\n" for line in chunk))
        everything += [line.rstrip().decode(errors="replace") for line in chunk if line.strip()]

    newest = everything[-MOST_LINES:]
    assert last.lines[len(last.lines) - len(newest) :] == tuple(newest) or not newest
