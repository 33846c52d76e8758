"""What a script writes is there once, whole, for all workers and launches; stores are told of."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script.calls import CallingScript, during_training
from holdfast.runtime.script.overlay import guarding, length_of, own_work
from holdfast.runtime.script.process import ScriptProcess, ScriptStores
from holdfast.runtime.script.writes import SharedWrites

Begin = Callable[..., ScriptProcess]


def add_lines(path: Path, *lines: str) -> str:
    """Run the lines of a script that appends to a log, in two ways, and looks at it."""
    with open(path, "a") as file:
        file.write(lines[0] if file.tell() else f"heading\n{lines[0]}")
    for line in lines[1:]:
        with path.open("ab") as file:
            file.write(line.encode())
    with open(path) as file:
        return file.read()


def test_line_is_appended_once_by_all_workers_and_launches(begin: Begin, tmp_path: Path) -> None:
    log = tmp_path / "runs.csv"
    for launch in (1, 1, 2, 2):
        begin(launch)
        assert add_lines(log, f"run {launch}\n", "a\n", "a\n") == "heading\nrun 1\na\na\n"


def test_lines_of_others_stay_and_a_log_that_is_begun_anew_gets_all_lines_again(
    begin: Begin, tmp_path: Path
) -> None:
    log = tmp_path / "runs.csv"
    begin(1)
    add_lines(log, "run\n")
    with during_training():
        log.write_text("heading\nrun\nof another program\n")
    begin(2)
    assert add_lines(log, "run\n", "more\n") == "heading\nrun\nof another program\nmore\n"

    begin(3)
    log.write_text("new heading\n")
    assert add_lines(log, "run\n") == "new heading\nrun\n"


def test_worker_that_has_died_after_it_appended_a_line_leaves_it_once(
    begin: Begin, run_dir: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    begin()
    add_lines(log, "a\n")
    record = run_dir / "script.jsonl"
    lines = record.read_text().splitlines(keepends=True)
    record.write_text("".join(line for line in lines if "appended" not in line))
    begin(2)

    assert add_lines(log, "a\n") == "heading\na\n"


def write(path: Path, number: int) -> int:
    """Run the line of a script that saves an array, by a library, and loads it again."""
    np.save(path, [number])
    return int(np.load(path)[0])


def test_worker_that_is_behind_reads_what_it_has_itself_written(
    begin: Begin, tmp_path: Path
) -> None:
    path = tmp_path / "x.npy"
    for _ in range(2):
        begin()
        assert [write(path, number) for number in range(3)] == [0, 1, 2]
        path.unlink()
    begin()
    write(path, 1)
    process = begin()
    assert [write(path, number) for number in (1, 2)] == [1, 2]
    process.begin_training(1, print, is_first=True)  # all workers have come here
    with during_training():
        np.save(path, [3])
    assert int(np.load(path)[0]) == 3


def test_numbers_that_numpy_writes_as_text_are_staged(begin: Begin, tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    begin()
    for number in (1, 2):
        np.savetxt(path, [number])
    begin()
    np.savetxt(path, [1])

    assert int(np.loadtxt(path)) == 1  # by itself; the other one has come further
    with own_work():
        assert path.read_text() == "2.000000000000000000e+00\n"


def test_file_that_is_mapped_is_written_in_place(begin: Begin, tmp_path: Path) -> None:
    begin()
    mapped = np.memmap(tmp_path / "x", np.uint8, "w+", shape=(3,))
    mapped[:] = 7
    mapped.flush()

    assert (tmp_path / "x").read_bytes() == b"\7\7\7"
    with open("/proc/self/comm", "r+") as file:
        assert os.path.samestat(os.fstat(file.fileno()), os.stat("/proc/self/comm"))


def test_file_is_there_for_others_when_it_is_closed_and_before_for_its_writer(
    begin: Begin, tmp_path: Path
) -> None:
    begin()
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(0o640)
    (tmp_path / "link").symlink_to(path)

    with open(tmp_path / "link", "w") as file:
        file.write("new")
        assert (tmp_path / "link").read_text() == "new"
        with during_training():
            assert path.read_text() == "old"

    with during_training():
        assert path.read_text() == "new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link").is_symlink()


def move(folder: Path) -> str:
    """Run the lines of a script that writes a file beside, and moves it to its place."""
    (folder / "new").write_text("text")
    os.replace(folder / "new", folder / "file")
    return (folder / "file").read_text()


def test_file_is_moved_by_the_worker_that_comes_first(begin: Begin, tmp_path: Path) -> None:
    for launch in (1, 1, 2):
        begin(launch)
        assert move(tmp_path) == "text"
        assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("mode", "buffering"),
    [
        *product(("w", "w+", "a+", "r+"), (-1, 1)),
        *product(("wb", "r+b", "ab"), (-1, 0)),
    ],
)
def test_file_is_as_python_makes_it(
    begin: Begin, tmp_path: Path, mode: str, buffering: int
) -> None:
    found: list[Any] = []
    for place in ("plain", "shared"):
        path = tmp_path / place
        path.write_text("before")
        if place == "shared":
            begin()
        with open(path, mode, buffering) as file:
            found.append([type(file), file.mode, file.name == str(path), file.tell()])
            file.write(b"x\n" if "b" in mode else "x\n")
            if "+" in mode:
                file.seek(0)
                found[-1].append(file.read())
        found[-1].append(path.read_bytes())
    if buffering:
        assert found[0] == found[1]
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("path", ["none/file", "folder", "old"])
def test_what_python_refuses_is_refused(begin: Begin, tmp_path: Path, path: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "old").touch()
    begin()

    with pytest.raises(OSError, match=path):
        (tmp_path / path).open("x" if path == "old" else "w")
    with pytest.raises(FileNotFoundError):
        (tmp_path / "none").open("r+")


def test_log_that_is_held_open_goes_on_through_deaths_and_launches(
    begin: Begin, tmp_path: Path
) -> None:
    path = tmp_path / "log"
    handlers: list[logging.FileHandler] = []

    def launch(number: int, *, is_first: bool) -> tuple[ScriptProcess, Any, logging.FileHandler]:
        process = begin(number)
        handler = logging.FileHandler(path)
        handlers.append(handler)
        handler.emit(logging.makeLogRecord({"msg": "begin"}))
        overlay = process.begin_training(1, pytest.fail, is_first=is_first)
        return process, overlay, handler

    def log(overlay: Any, handler: logging.FileHandler, text: str) -> None:
        with during_training(), guarding(overlay):
            handler.emit(logging.makeLogRecord({"msg": text}))

    _, first, of_first = launch(1, is_first=True)
    process, second, of_second = launch(1, is_first=False)
    for overlay, handler in ((first, of_first), (second, of_second)):
        log(overlay, handler, "step 1")
    lengths = first.measure()
    for overlay in (first, second):
        overlay.agreed(lengths)
    log(second, of_second, "step 2")
    second.take_over()
    log(second, of_second, "step 3")
    process.files.finish()
    assert path.read_text() == "begin\nstep 1\nstep 2\nstep 3\n"

    process, relaunched, of_relaunched = launch(2, is_first=True)
    with during_training():
        relaunched.restore(lengths)
        relaunched.resumed()
    log(relaunched, of_relaunched, "again step 2")
    relaunched.agreed(relaunched.measure())
    process.files.finish()
    process.files.conclude()
    assert path.read_text() == "begin\nstep 1\nagain step 2\n"

    process, _, _ = launch(3, is_first=True)  # the training is complete
    process.files.finish()
    for handler in handlers:
        handler.close()
    assert path.read_text() == "begin\nstep 1\nagain step 2\n"


def test_hdf5_file_is_written_by_the_worker_that_closes_it_first(
    begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.h5"
    for name in ("__init__", "close"):
        monkeypatch.setattr(h5py.File, name, getattr(h5py.File, name))

    def script(value: int) -> list[int]:
        with h5py.File(path, "w") as file:
            file["x"] = value
        with h5py.File(path, "a") as file:
            file["y"] = 2 * value
        with h5py.File(path) as file:
            return [int(file[name][()]) for name in "xy"]

    plain = h5py.File.__init__, h5py.File.close
    for _ in range(2):
        h5py.File.__init__, h5py.File.close = plain
        process = begin()
        process.files.share_hdf5(h5py)
        assert script(3) == [3, 6]
    left_open = h5py.File(tmp_path / "left.h5", "w")
    left_open["x"] = 1
    assert not (tmp_path / "left.h5").exists()
    process.files.finish()
    assert (tmp_path / "left.h5").exists()


def test_log_that_a_worker_names_by_itself_is_its_own(begin: Begin, tmp_path: Path) -> None:
    process = begin()
    with open(tmp_path / "log of worker 1", "w") as log:
        log.write("begin\n")
        overlay = process.begin_training(1, print, is_first=False)
        with during_training():
            overlay.agreed({})
        log.write("end\n")

    assert (tmp_path / "log of worker 1").read_text() == "begin\nend\n"


def test_next_first_worker_goes_on_in_a_log_of_earlier_trainings(
    begin: Begin, tmp_path: Path
) -> None:
    """The first one dies between two trainings, after it has written one more line."""
    process = begin()
    with open(tmp_path / "log", "w") as log:
        log.write("begin\n")
        overlay = process.begin_training(1, print, is_first=False)
        with during_training():
            (tmp_path / "log").write_text("begin\n")
            overlay.agreed({str(tmp_path / "log"): length_of(tmp_path / "log")})
            (tmp_path / "log").write_text("begin\nbetween\n")
        log.write("between\n")
        overlay = process.begin_training(2, print, is_first=True)
        with during_training():
            overlay.agreed(overlay.measure())
        log.write("end\n")

    assert (tmp_path / "log").read_text() == "begin\nbetween\nend\n"


def test_file_that_is_left_open_is_there_at_the_end(begin: Begin, tmp_path: Path) -> None:
    process = begin()
    files = [(tmp_path / mode).open(mode) for mode in ("a", "w")]
    for file in files:
        file.write("text")
        file.flush()

    process.files.finish()

    assert [(tmp_path / mode).read_text() for mode in ("a", "w")] == ["text", "text"]
    for file in files:
        file.close()


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
    sqlite3.connect(path).execute("select * from runs").close()
    sqlite3.connect(":memory:").execute("create table runs (name text)").close()
    assert list(stores.new_words(3)) == []


def test_run_that_a_library_has_open_is_named(
    stores: ScriptStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: "a run"))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))

    (word,) = stores.new_words(2)

    assert word.startswith("the script writes to a run of mlflow on each of the 2 workers")


def writers(folder: Path) -> list[SharedWrites]:
    return [
        SharedWrites(ScriptRecord(folder / "record"), CallingScript(Path(__file__)))
        for _ in range(2)
    ]


def test_one_worker_writes_what_a_library_saves_and_all_find_it(tmp_path: Path) -> None:
    path = tmp_path / "m.keras"
    one, other = writers(tmp_path)
    written: list[str] = []

    def write(by: str, saves: SharedWrites) -> Any:
        def save() -> str:
            written.append(by)
            path.write_text(by)
            return by

        return saves.once(str(path), save, lambda: f"found by {by}")

    assert [write("one", one), write("other", other)] == ["one", "found by other"]
    assert [write("other", other), write("one", one)] == ["other", "found by one"]
    one.alone(lambda: write("one", one))  # in a hook, which the others put off
    path.unlink()  # as on a host with a disk of its own
    write("one", one)
    path.unlink()
    assert write("other", other) == "other"
    assert written == ["one", "other", "one", "one", "other"]


def test_save_that_fails_is_made_by_the_next_worker(tmp_path: Path) -> None:
    one, other = writers(tmp_path)
    path = tmp_path / "m.keras"

    def fail() -> None:
        path.touch()
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        one.once(str(path), fail)
    assert other.once(str(path), lambda: "whole") == "whole"
    assert json.loads((tmp_path / "record").read_text().splitlines()[0])[2] == "reached"
