"""Lengths of growing files are told by their last bytes, and no file of another is cut."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.callbacks.first_files import FirstFiles, Length, guarding, length_of

TAIL = 4096
WORDS = (
    "is not the file that the callbacks of this run wrote: it is not cut, and they go on at its end"
)


def files(*, is_first: bool = True) -> tuple[FirstFiles, list[str]]:
    """Return a worker's files, and the lines that they say."""
    said: list[str] = []
    return FirstFiles(is_first, lambda: Path("/none"), said.append), said


@given(st.binary(max_size=40), st.integers(0, 40), st.sampled_from([0, TAIL - 20, 3 * TAIL]))
def test_length_before_a_cut_is_that_of_the_file_when_it_was_shorter(
    content: bytes, size: int, before: int
) -> None:
    whole = bytes(before) + content
    size = min(before + size, len(whole))
    with tempfile.TemporaryDirectory() as folder:
        longer, shorter = Path(folder, "longer"), Path(folder, "shorter")
        longer.write_bytes(whole)
        shorter.write_bytes(whole[:size])

        assert length_of(longer, size) == length_of(shorter) == length_of(shorter, size)


@pytest.mark.parametrize(
    ("place", "is_seen"),
    [(0, True), (-1, True), (-TAIL, True), (-TAIL - 1, False)],
    ids=["first byte of a short file", "last", "first of the tail", "before the tail"],
)
def test_another_byte_is_seen_in_the_tail(tmp_path: Path, place: int, *, is_seen: bool) -> None:
    path = tmp_path / "log"
    content = bytearray(10 if place == 0 else 2 * TAIL)
    path.write_bytes(content)
    before = length_of(path)
    content[place] = 1
    path.write_bytes(content)

    assert (length_of(path) != before) is is_seen


def test_lengths_of_one_tail_but_other_sizes_differ(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(bytes(TAIL))
    (tmp_path / "long").write_bytes(bytes(TAIL + 1))

    short, long = length_of(tmp_path / "short"), length_of(tmp_path / "long")

    assert short.tail == long.tail
    assert short.as_json() == [TAIL, short.tail]
    assert long == Length(TAIL + 1, short.tail)


def test_file_is_cut_to_its_length_at_the_last_agreement_and_others_stay(tmp_path: Path) -> None:
    path, other = tmp_path / "log", tmp_path / "other"
    path.write_text("agreed")
    here, said = files()
    here.agreed({str(path): length_of(path)})
    path.write_text("agreed and more")
    other.write_text("unknown")

    here.cut(path)
    here.cut(other)

    assert (path.read_text(), other.read_text()) == ("agreed", "unknown")
    assert said == []


@pytest.mark.parametrize("content", ["agre", "AGREED and more"], ids=["shorter", "other bytes"])
def test_file_of_another_program_is_not_cut_and_that_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log"
    path.write_text("agreed")
    here, said = files()
    length = length_of(path)
    path.write_text(content)

    here.restore({str(path): length.as_json()})

    assert path.read_text() == content
    assert said == [f"{path} {WORDS}"]


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_worker_cuts_files_of_a_checkpoint(
    tmp_path: Path, *, is_first: bool
) -> None:
    path, gone = tmp_path / "log", tmp_path / "gone"
    path.write_text("agreed and more")
    here, said = files(is_first=is_first)

    here.restore({str(path): length_of(path, 6).as_json(), str(gone): [6, "0123"]})

    assert path.read_text() == ("agreed" if is_first else "agreed and more")
    assert here.is_resuming
    assert here.may_repeat
    assert said == []


def write(path: Path, mode: str, *, closes: bool = True) -> Any:
    file = path.open(mode)
    file.write("line\n")
    if closes:
        file.close()
    return file


def test_file_that_is_rewritten_does_not_grow_any_more(tmp_path: Path) -> None:
    here, _ = files()
    appended, opened = tmp_path / "appended", tmp_path / "opened"
    with guarding(here):
        write(appended, "a")
        held = write(opened, "w", closes=False)
    lengths = here.measure()
    here.agreed(lengths)
    with guarding(here):
        write(appended, "w")

    rewritten = here.measure()
    held.close()

    assert {path: length.size for path, length in lengths.items()} == {
        str(appended): 5,
        str(opened): 5,
    }
    assert list(rewritten) == [str(opened)]
    assert here.measure() == {}


def test_rounds_are_counted_when_they_are_agreed_on_and_when_they_are_made_real() -> None:
    here, _ = files(is_first=False)

    here.agreed({})
    here.take_over()
    here.take_over()  # already the first one

    assert here.rounds == 2
