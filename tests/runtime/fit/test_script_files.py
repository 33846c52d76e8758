"""Logs of a script are there once for a run, and its stores are told of."""

from __future__ import annotations

import builtins
import io
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.fit.script_files import ScriptFiles, ScriptStores
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import CallingScript, during_training


class Launches:
    """Begins processes of one run, each in the place of the one before."""

    def __init__(self, tmp_path: Path) -> None:
        self.run_dir = tmp_path / "run"
        self.run_dir.mkdir()
        self._plain = open
        self._number = 0

    def begin(self, *, is_first: bool = True) -> ScriptFiles:
        builtins.open = io.open = self._plain  # type: ignore[assignment]
        self._number += 1
        scratch = self.run_dir / str(self._number)
        scratch.mkdir()
        files = ScriptFiles(
            ScriptRecord(self.run_dir / "script.jsonl"),
            CallingScript(Path(__file__)),
            self.run_dir,
            lambda: is_first,
            lambda: scratch,
            self.run_dir / "loaded",
        )
        files.share()
        return files


@pytest.fixture
def launches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launches:
    monkeypatch.setattr(builtins, "open", open)
    monkeypatch.setattr(io, "open", io.open)
    return Launches(tmp_path)


def add_line(path: Path, *lines: str) -> str:
    """Run the lines of a script that appends to a log, in two ways, and looks at it."""
    with open(path, "a") as file:
        file.write(lines[0])
    for line in lines[1:]:
        with path.open("ab") as file:
            file.write(line.encode())
    with open(path) as file:
        return file.read()


def add_entry(path: Path, entry: str) -> Any:
    """Run the lines of a script that reads a log, and writes it with one more entry."""
    with open(path) as file:
        entries = json.load(file)
    with open(path, "w", encoding="utf-8") as file:
        json.dump([*entries, entry], file)
    with open(path) as file:
        return json.load(file)


def test_line_is_appended_once_by_all_workers_and_launches(
    launches: Launches, tmp_path: Path
) -> None:
    log = tmp_path / "runs.csv"
    log.write_text("before\n")
    for is_first in (True, False, True, False):
        launches.begin(is_first=is_first)
        seen = add_line(log, "run 1\n", "a\n", "a\n")
        assert seen == "before\nrun 1\na\na\n"

    with during_training():
        assert log.read_text() == "before\nrun 1\na\na\n"


def test_other_line_of_a_later_launch_and_lines_of_others_stay(
    launches: Launches, tmp_path: Path
) -> None:
    log = tmp_path / "runs.csv"
    launches.begin()
    add_line(log, "run 1\n")
    launches.begin()
    with during_training():
        add_line(log, "of another program\n")

    seen = add_line(log, "run 1\n", "took 3 s\n")

    assert seen == "run 1\nof another program\ntook 3 s\n"


def test_entry_of_a_log_that_is_read_and_rewritten_is_there_once(
    launches: Launches, tmp_path: Path
) -> None:
    log = tmp_path / "runs.json"
    log.write_text('["before"]')
    for is_first in (True, False, True, True):
        launches.begin(is_first=is_first)
        assert add_entry(log, "run 1") == ["before", "run 1"]

    assert json.loads(log.read_text()) == ["before", "run 1"]


def test_log_that_another_program_has_changed_since_loses_nothing(
    launches: Launches, tmp_path: Path
) -> None:
    log = tmp_path / "runs.json"
    log.write_text("[]")
    launches.begin()
    add_entry(log, "run 1")
    with during_training():
        log.write_text('["run 1", "of another program"]')
    launches.begin()

    assert add_entry(log, "run 1") == ["run 1", "of another program", "run 1"]


def test_file_that_a_hook_writes_is_read_as_the_hook_has_left_it(
    launches: Launches, tmp_path: Path
) -> None:
    log = tmp_path / "log.csv"
    files = launches.begin(is_first=False)
    log.write_text("heading\n")
    add_line(log, "of this worker\n")
    with during_training():
        log.write_text("heading\nepoch 1\n")
        files.forget(str(log))

    with open(log) as file:
        assert file.read() == "heading\nepoch 1\n"


def test_log_that_is_held_open_goes_on_when_this_worker_becomes_the_first(
    launches: Launches, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    path.write_text("step 1 of the first worker\n")
    files = launches.begin(is_first=False)
    with open(path, "a") as log:
        log.write("step 1\n")
        files.agreed()
        log.write("step 2\n")
        files.lead()
        log.write("step 3\n")

    with during_training():
        assert path.read_text() == "step 1 of the first worker\nstep 2\nstep 3\n"


@pytest.mark.parametrize("mode", ["w", "x", "w+", "a+", "r+"])
def test_other_ways_to_write_are_plain(launches: Launches, tmp_path: Path, mode: str) -> None:
    path = tmp_path / "file"
    if mode == "r+":
        path.write_text("")
    launches.begin(is_first=False)

    with open(path, mode) as file:
        file.write("text")

    assert path.read_text() == "text"


def test_file_that_is_opened_to_append_is_as_python_makes_it(
    launches: Launches, tmp_path: Path
) -> None:
    launches.begin()
    make: Callable[..., Any] = open

    with make(tmp_path / "a", "a", 1, encoding="latin-1", newline="\r\n") as file:
        file.write("\u00fc\n")
        assert (tmp_path / "a").read_bytes() == b"\xfc\r\n"
        assert (file.mode, file.name, file.encoding) == ("a", str(tmp_path / "a"), "latin-1")
    with make(tmp_path / "b", "ab", 0) as raw:
        raw.write(b"x")
        assert (tmp_path / "b").read_bytes() == b"x"
    assert sys.getrefcount(file) < 10


@pytest.fixture
def stores(monkeypatch: pytest.MonkeyPatch) -> ScriptStores:
    monkeypatch.setattr(sqlite3, "connect", sqlite3.connect)
    monkeypatch.setattr(sqlite3.dbapi2, "connect", sqlite3.dbapi2.connect)
    found = ScriptStores(CallingScript(Path(__file__)))
    found.share(sqlite3)
    return found


def test_database_that_the_script_has_written_is_named_once(
    stores: ScriptStores, tmp_path: Path
) -> None:
    path = tmp_path / "runs.db"
    with sqlite3.connect(path) as database:
        database.execute("create table runs (name text)")
    database.close()

    (word,) = stores.new_words(3)

    assert word.startswith(f"the script writes to {path} on each of the 3 workers")
    assert "if holdfast.is_first():" in word
    assert list(stores.new_words(3)) == []


def test_database_that_is_only_read_and_one_in_memory_are_not_named(
    stores: ScriptStores, tmp_path: Path
) -> None:
    path = tmp_path / "data.db"
    with sqlite3.dbapi2.connect(path) as database:
        database.execute("create table samples (x real)")
    database.close()
    list(stores.new_words(2))
    sqlite3.connect(path).execute("select * from samples").close()
    sqlite3.connect(":memory:").execute("create table runs (name text)").close()

    assert list(stores.new_words(2)) == []


def test_run_that_a_library_has_open_is_named(
    stores: ScriptStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: "a run"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))

    (word,) = stores.new_words(2)

    assert word.startswith("the script writes to a run of mlflow on each of the 2 workers")
