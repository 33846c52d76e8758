"""The index of a TFRecord file, against TensorFlow's own writer and reader."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest

from holdfast.runtime.data.tfrecord_data import offsets_of
from holdfast.runtime.errors import ProgramError

EMPTY = bytes.fromhex("0000000000000000 29039807 d8ea82a2")
"""A record without content, as TensorFlow writes it."""


def records(folder: Path, count: int) -> Path:
    """Return a file of so many records without content."""
    (folder / "a.tfrecord").write_bytes(count * EMPTY)
    return folder / "a.tfrecord"


def test_records_without_content_are_found(tmp_path: Path) -> None:
    file = records(tmp_path, 3)

    np.testing.assert_array_equal(offsets_of(file, None), [0, 16, 32, 48])


def test_index_is_kept_beside_the_file_or_where_it_is_asked_for(tmp_path: Path) -> None:
    file = records(tmp_path, 2)

    offsets_of(file, None)
    offsets_of(file, tmp_path / "elsewhere")

    kept = tmp_path / "a.tfrecord.index", tmp_path / "elsewhere" / "a.tfrecord.index"
    assert kept[0].read_bytes() == kept[1].read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.tfrecord",
        "a.tfrecord.index",
        "elsewhere",
    ]


def test_index_that_is_kept_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = records(tmp_path, 2)
    first = offsets_of(file, None)
    monkeypatch.delattr("holdfast.runtime.data.tfrecord_data._scanned")

    np.testing.assert_array_equal(offsets_of(file, None), first)


@pytest.mark.parametrize("place", [5, -3])
def test_index_that_is_damaged_is_made_again(tmp_path: Path, place: int) -> None:
    file, index = records(tmp_path, 2), tmp_path / "a.tfrecord.index"
    first = offsets_of(file, None)
    whole = index.read_bytes()
    damaged = bytearray(whole)
    damaged[place] ^= 1
    index.write_bytes(damaged)

    np.testing.assert_array_equal(offsets_of(file, None), first)
    assert index.read_bytes() == whole


def test_index_of_another_file_is_made_again(tmp_path: Path) -> None:
    file = records(tmp_path, 2)
    offsets_of(file, None)
    file.write_bytes(5 * EMPTY)

    assert len(offsets_of(file, None)) == 6
    assert json.loads((tmp_path / "a.tfrecord.index").read_bytes().split(b"\n")[0])["bytes"] == 80


def test_place_that_takes_no_index_costs_a_scan_only(tmp_path: Path) -> None:
    file = records(tmp_path, 1)
    (tmp_path / "taken").write_text("a file, and no directory")

    np.testing.assert_array_equal(offsets_of(file, tmp_path / "taken"), [0, 16])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (gzip.compress(EMPTY, mtime=0), "is compressed"),
        (b"no records, but a long line of plain text", "record 1, which begins at byte 0"),
        (EMPTY + EMPTY[:-1], "record 2, which begins at byte 16"),
        (EMPTY + b"\x01" + EMPTY[1:], "record 2, which begins at byte 16"),
        (EMPTY[:7], "record 1, which begins at byte 0"),
    ],
    ids=["empty", "gzip", "text", "cut", "shifted", "short"],
)
def test_file_that_is_none_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    file = tmp_path / "a.tfrecord"
    file.write_bytes(content)

    with pytest.raises(ProgramError, match=said):
        offsets_of(file, None)


def test_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match=r"missing\.tfrecord cannot be read"):
        offsets_of(tmp_path / "missing.tfrecord", None)


def test_index_can_be_read_by_all(tmp_path: Path) -> None:
    """A temporary file would be readable by its owner alone."""
    file = records(tmp_path, 2)

    offsets_of(file, None)

    assert (tmp_path / "a.tfrecord.index").stat().st_mode & 0o777 == 0o644


def test_index_that_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    file = records(tmp_path, 2)
    (tmp_path / "a.tfrecord.index").mkdir()

    np.testing.assert_array_equal(offsets_of(file, None), [0, 16, 32])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.tfrecord", "a.tfrecord.index"]


def test_index_of_a_file_that_was_written_again_is_made_again(tmp_path: Path) -> None:
    """Its length is the same, and its time tells it."""
    file, index = records(tmp_path, 2), tmp_path / "a.tfrecord.index"
    offsets_of(file, None)
    before = index.read_bytes()

    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    offsets_of(file, None)

    assert index.read_bytes() != before


@pytest.mark.parametrize(
    "content",
    [b"", b"[]\n", b'{"bytes": 32}\n', b"\xff\xfe\n"],
    ids=["empty", "list", "other keys", "no text"],
)
def test_file_that_is_no_index_is_replaced(tmp_path: Path, content: bytes) -> None:
    file, index = records(tmp_path, 2), tmp_path / "a.tfrecord.index"
    index.write_bytes(content)

    np.testing.assert_array_equal(offsets_of(file, None), [0, 16, 32])
    assert index.read_bytes().startswith(b'{"bytes": 32, "modified_ns": ')
