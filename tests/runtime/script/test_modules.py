"""The user's own modules: which of them a script gets, and with which text."""

from __future__ import annotations

import dataclasses
import importlib
import json
import linecache
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

import pytest
from configs import worker_config

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.program import Program, keep
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.script import modules
from holdfast.runtime.script.modules import OwnFiles, hidden, run_as_begun, script_digest

LOADED = {
    "statistics": "/usr/lib/python3/statistics.py",
    "os": "/usr/lib/python3/os.py",
    "tree": "/site/tree/__init__.py",
    "numpy": "/site/numpy/__init__.py",
    "helper": "/work/helper.py",
    "sys": None,
    "_queue": None,
}


@pytest.mark.parametrize(
    ("beside", "names"),
    [
        (["train", "statistics"], ["statistics"]),
        (["tree"], ["tree"]),
        (["os", "sys"], []),
        (["numpy"], []),
        (["helper", "random"], []),
    ],
    ids=["of Python", "of a package", "of Python's start", "ours", "not loaded, or the user's"],
)
def test_file_beside_a_script_hides_what_is_loaded_from_elsewhere(
    beside: list[str], names: list[str]
) -> None:
    assert hidden(beside, LOADED, "/work") == names


PROGRAM = """
import json, statistics, sys
from pathlib import Path
from holdfast.runtime.script.modules import prefer_users_modules
folder = Path(sys.argv[1])
sys.path.insert(0, str(folder))
python = statistics.mean
prefer_users_modules(folder)
import runpy
runpy.run_path(str(folder / "train.py"), run_name="__main__")
assert statistics.mean is python and json.loads("[1]") == [1]
"""


@pytest.mark.process
def test_script_gets_the_users_modules_and_what_is_loaded_keeps_its_own(tmp_path: Path) -> None:
    (tmp_path / "statistics.py").write_text("WORD = 'mine'\nimport math\n")
    (tmp_path / "json").mkdir()
    (tmp_path / "json/__init__.py").write_text("from json.part import WORD\n")
    (tmp_path / "json/part.py").write_text("WORD = 'a package of mine'\n")
    (tmp_path / "helper.py").write_text("from statistics import WORD\n")
    (tmp_path / "train.py").write_text(
        "import statistics, json, helper\nprint(statistics.WORD, helper.WORD, json.WORD)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("mine mine a package of mine\n", "")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OwnFiles]:
    """The files of this process, as those of a job that has begun with ``train.py``."""
    monkeypatch.setattr(SourceFileLoader, "get_code", SourceFileLoader.get_code)
    monkeypatch.setattr(modules, "_own", None)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "train.py").write_text("import own_a\n")
    (tmp_path / "own_a.py").write_text("VALUE = 1\n")
    (tmp_path / "own_b.py").write_text("VALUE = 2\n")
    yield _launch(tmp_path, [])
    for name in ("own_a", "own_b"):
        sys.modules.pop(name, None)


def _launch(folder: Path, lines: list[str], generation: int = 1, **early: Any) -> OwnFiles:
    """Return the files of another launch of the job."""
    run = RunDirectory(folder / "run")
    program = Program.of(folder / "train.py")
    config = dataclasses.replace(
        worker_config(run_dir=run.path, generation=generation), program=program.digests
    )
    if not run.path.exists():
        run.path.mkdir()
        keep(run.program_path, program.texts.values())
        (folder / "begun.json").write_text(json.dumps(program.digests))
    begun = json.loads((folder / "begun.json").read_text())
    config = dataclasses.replace(config, program=begun)
    own = OwnFiles(config, ScriptRecord(run.script_record_path), lines.append, **early)
    run_as_begun(own)
    return own


def _value(name: str) -> int:
    sys.modules.pop(name, None)
    value: int = importlib.import_module(name).VALUE
    return value


@pytest.mark.usefixtures("own")
def test_launch_runs_the_texts_that_the_job_began_with(tmp_path: Path) -> None:
    assert (_value("own_a"), _value("own_b")) == (1, 2)
    before = script_digest(())
    for name in ("own_a", "own_b"):
        (tmp_path / f"{name}.py").write_text("VALUE = 7\n")
    lines: list[str] = []

    _launch(tmp_path, lines)

    assert (_value("own_a"), _value("own_b")) == (1, 2)
    assert linecache.getline(str(tmp_path / "own_a.py"), 1) == "VALUE = 1\n"
    assert [line.partition(":")[0] for line in lines] == [
        f"{tmp_path / name}.py has changed since this job began" for name in ("own_a", "own_b")
    ]
    assert script_digest(()) == before
    assert script_digest(("--fast",)) != before


@pytest.mark.usefixtures("own")
def test_module_that_the_script_writes_and_loads_again_is_taken_as_it_was_then(
    tmp_path: Path,
) -> None:
    def loaded() -> list[int]:
        (tmp_path / "own_a.py").write_text("VALUE = 1\n")
        values = [_value("own_a")]
        (tmp_path / "own_a.py").write_text("VALUE = 33\n")
        return [*values, _value("own_a")]

    assert loaded() == [1, 33]
    _launch(tmp_path, [])
    assert loaded() == [1, 33]


def test_text_that_is_gone_is_named(tmp_path: Path, own: OwnFiles) -> None:
    (tmp_path / "own_a.py").unlink()
    assert own.text(str(tmp_path / "own_a.py")) == b"VALUE = 1\n"
    with pytest.raises(FileNotFoundError):
        own.text(str(tmp_path / "nowhere.py"))
    shutil.rmtree(tmp_path / "run" / "program")

    with pytest.raises(UsageError, match=r"own_a.py has changed since this job began, and what"):
        _launch(tmp_path, []).text(str(tmp_path / "own_a.py"))


def test_module_that_is_written_before_its_first_import_is_taken_by_the_whole_job(
    tmp_path: Path, own: OwnFiles
) -> None:
    (tmp_path / "own_a.py").write_text("VALUE = 5\n")
    lines: list[str] = []
    in_training = _launch(tmp_path, lines, began=0.0, is_early=lambda: False)
    assert in_training.text(str(tmp_path / "train.py"), "train") == b"import own_a\n"
    _launch(tmp_path, lines, began=0.0)

    assert _value("own_a") == 5
    assert "own_a.py was written after this job began, before the script" in lines[0]
    own.text(str(tmp_path / "own_a.py"), "own_a")  # another worker
    (tmp_path / "own_a.py").write_text("VALUE = 7\n")
    _launch(tmp_path, lines, began=0.0)
    assert _value("own_a") == 5
    _launch(tmp_path, lines, generation=4)
    assert _value("own_a") == 5


@pytest.mark.parametrize("generation", [1, 4])
def test_module_that_is_written_in_a_training_or_a_relaunch_is_not_taken(
    tmp_path: Path, own: OwnFiles, generation: int
) -> None:
    (tmp_path / "own_a.py").write_text("VALUE = 5\n")
    lines: list[str] = []
    _launch(tmp_path, lines, generation=generation, began=0.0, is_early=lambda: generation > 1)

    assert _value("own_a") == 1
    assert len(lines) == 1


@pytest.mark.parametrize("is_named", [True, False], ids=["found by the client", "found late"])
def test_module_that_is_another_file_in_a_relaunch_is_refused(
    tmp_path: Path, own: OwnFiles, *, is_named: bool
) -> None:
    name = "own_a" if is_named else "own_b"
    value, text = _value(name), (tmp_path / f"{name}.py").read_text()
    (tmp_path / name).mkdir()
    package = tmp_path / name / "__init__.py"
    package.write_text("VALUE = 33\n")
    importlib.invalidate_caches()
    _launch(tmp_path, [], generation=4)
    with pytest.raises(UsageError, match=rf"{name}.py when this job began, and is .*__init__"):
        _value(name)

    package.write_text(text)
    _launch(tmp_path, [], generation=5)
    assert _value(name) == value
    package.write_text("VALUE = 33\n")
    _launch(tmp_path, [], generation=6)
    assert _value(name) == value


@pytest.mark.usefixtures("own")
def test_late_module_that_is_a_package_by_then_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own_a").mkdir()
    (tmp_path / "own_a/__init__.py").write_text("VALUE = 33\n")
    importlib.invalidate_caches()
    _launch(tmp_path, [], generation=4)

    with pytest.raises(UsageError, match="the module own_a was"):
        _value("own_a")
