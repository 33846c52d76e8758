"""Functions of Python that were exchanged: a script hands them on as it does with Python's own."""

from __future__ import annotations

import copy
import os
import pickle
import time
from pathlib import Path

import pytest

from holdfast.runtime.fit.directories import SharedDirectories
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import CallingScript
from holdfast.runtime.worker.script_draws import exchange


def test_exchanged_functions_are_pickled_by_name_and_are_no_methods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module, name in ((time, "time"), (os, "getpid")):
        monkeypatch.setattr(module, name, getattr(module, name))
        exchange(module, name, lambda: 7)

    class Timer:
        """Keeps functions as a script's class may do."""

        clock = time.time
        pid = os.getpid

    assert (Timer().clock(), Timer().pid(), os.getpid.__name__) == (7, 7, "getpid")
    for function in (os.getpid, time.time):
        assert pickle.loads(pickle.dumps(function)) is function
        assert copy.deepcopy(function) is function


def test_directories_of_a_script_are_made_by_other_processes_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("mkdir", "remove", "unlink"):
        monkeypatch.setattr(os, name, getattr(os, name))
    for module, name in (("shutil", "rmtree"), ("tempfile", "mkdtemp")):
        monkeypatch.setattr(f"{module}.{name}", getattr(__import__(module), name))
    record = ScriptRecord(tmp_path / "script.jsonl")
    SharedDirectories(record, CallingScript(Path(__file__)), tmp_path / "run", 0.0).share()

    assert pickle.loads(pickle.dumps(os.remove)) is os.remove
    assert b"posix" not in pickle.dumps(os.mkdir)
