"""The files of a trace: bounded, gone on with, and never in the way."""

from __future__ import annotations

import base64
from array import array
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import Ownership
from holdfast.runtime.run.trace import TraceFiles, TracePiece, read_trace
from holdfast.runtime.system.codec import encode
from holdfast.runtime.system.timeline import Activity, Change


def piece(worker: int) -> TracePiece:
    words = array("Q", [10**13 << 16 | 7 << 4 | Activity.VOTE])
    text = base64.b64encode(words.tobytes()).decode()
    return TracePiece("a", worker, 1, 7, text, 0, 1e7, offset_s=1.5)


def write(folder: Path, *workers: int, file_bytes: int = 1 << 20) -> list[str]:
    """Write a piece for each worker; return the warnings."""
    warnings: list[str] = []
    files = TraceFiles(folder, Ownership(folder.parent, "r"), warnings.append, file_bytes)
    for worker in workers:
        files.write(encode(piece(worker)).decode())
    files.close()
    return warnings


def test_pieces_come_back_with_their_changes(tmp_path: Path) -> None:
    assert write(tmp_path / "trace", 0, 1) == []

    found = list(read_trace(tmp_path / "trace"))

    assert found == [piece(0), piece(1)]
    assert list(found[0].changes) == [Change(10**13, 7, Activity.VOTE)]


def test_next_job_goes_on_with_the_trace_after_a_torn_line(tmp_path: Path) -> None:
    write(tmp_path, 0)
    with (tmp_path / "000001.jsonl").open("ab") as file:
        file.write(b'\n{"host": "a", "wor')

    write(tmp_path, 1)

    assert [found.worker for found in read_trace(tmp_path)] == [0, 1]


def test_first_file_and_the_newest_ones_stay(tmp_path: Path) -> None:
    size = 2 + len(encode(piece(10)))  # one piece a file

    write(tmp_path, *range(10, 22), file_bytes=size)

    assert [found.worker for found in read_trace(tmp_path)] == [10, 19, 20, 21]


def test_trace_that_cannot_be_written_is_told_of_once(tmp_path: Path) -> None:
    (tmp_path / "trace").write_text("not a folder")

    warnings = write(tmp_path / "trace", 0, 1)

    assert len(warnings) == 1
    assert "has gaps" in warnings[0]


def test_run_without_a_trace_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no trace: run the job with --trace"):
        list(read_trace(tmp_path / "trace"))
