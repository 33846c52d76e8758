"""The first line of a key counts, for all processes and all launches of a run."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from holdfast.runtime.run.run_directory import FORMAT, Ownership, RunDirectory, RunRecord
from holdfast.runtime.run.script_record import ScriptRecord


def test_first_value_counts_for_all_processes_and_later_launches(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    one, other = ScriptRecord(path), ScriptRecord(path)

    assert (one.first("time", 1.5), other.first("time", 2.5)) == (1.5, 1.5)
    assert (other.first("pid", 7), one.first("pid", 8)) == (7, 7)
    assert ScriptRecord(path).find("pid") == 7
    assert one.find("host") is None


def test_torn_line_is_no_value_and_one_that_is_being_written_comes_later(tmp_path: Path) -> None:
    path = tmp_path / "script.jsonl"
    path.write_text('["a", 1]\n["b", \n["c", 3')
    record = ScriptRecord(path)

    assert [record.find(key) for key in "abc"] == [1, None, None]
    with path.open("a") as file:
        file.write("]\n")
    assert record.find("c") == 3


def test_file_system_that_refuses_leaves_each_process_its_own_values(tmp_path: Path) -> None:
    one, other = (ScriptRecord(tmp_path / "none" / "script.jsonl") for _ in range(2))

    with one.turn(), other.turn():
        assert (one.first("time", 1.5), other.first("time", 2.5)) == (1.5, 2.5)
    assert one.first("time", 3.5) == 1.5


@pytest.mark.parametrize("is_of_hosts", [False, True])
def test_processes_of_several_hosts_append_in_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_of_hosts: bool
) -> None:
    """A network file system would let the lines of two hosts overwrite each other."""
    path = tmp_path / "script.jsonl"
    record = ScriptRecord(path, is_of_hosts=is_of_hosts)
    write, had_turn = os.write, list[bool]()

    def noting_write(file: int, line: bytes) -> int:
        with path.open("rb") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                had_turn.append(True)
            else:
                had_turn.append(False)
        return write(file, line)

    monkeypatch.setattr(os, "write", noting_write)
    record.first("time", 1.5)
    record.reach("pass", 2)
    with record.turn():
        record.first("pid", 7)

    assert had_turn == [is_of_hosts, is_of_hosts, True]
    assert ScriptRecord(path).find("pid") == 7


def test_fresh_run_begins_with_an_empty_record(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.loaded_path.mkdir()
    ScriptRecord(directory.script_record_path).first("time", 1.5)

    folder = directory.set_aside()

    assert folder is not None
    assert sorted(path.name for path in folder.iterdir()) == ["loaded", "script.jsonl"]
    assert ScriptRecord(directory.script_record_path).find("time") is None


def test_record_of_another_run_gets_no_line(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.create_record(RunRecord("other", FORMAT, 1.5, microbatches=1, seed=0, threads=1))
    record = ScriptRecord(directory.script_record_path, owner=Ownership(tmp_path, "r"))

    assert record.first("time", 1.5) == 1.5

    assert not directory.script_record_path.exists()
