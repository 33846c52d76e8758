"""The user's own modules: which of them a script gets, and the digest of script and modules."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.worker.users_modules import hidden, script_digest

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
from holdfast.runtime.worker.users_modules import prefer_users_modules
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


def test_script_its_modules_and_its_arguments_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, module = tmp_path / "train.py", tmp_path / "own_layers_of_the_script.py"
    script.write_text("one")
    module.write_text("A = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    known = script_digest(script, ())

    assert script_digest(script, ()) == known
    assert script_digest(script, ("--fast",)) != known
    importlib.import_module(module.stem)
    imported = script_digest(script, ())
    module.write_text("A = 2\n")
    changed = script_digest(script, ())
    del sys.modules[module.stem]
    script.write_text("two")

    assert len({known, imported, changed, script_digest(script, ())}) == 4


def test_script_that_is_gone_has_a_digest(tmp_path: Path) -> None:
    assert script_digest(tmp_path / "gone.py", ())
