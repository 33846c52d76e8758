"""A store that the script writes to on each worker is told of once, before a training."""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.runtime.fit.script_files import ScriptStores
from holdfast.runtime.worker.script_clock import CallingScript


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
