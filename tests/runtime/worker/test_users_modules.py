"""A module beside the script wins over one that is imported already, in the user's files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.runtime.worker.users_modules import hidden

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
sys.path.append(str(folder.parent / "library"))
python = statistics, json
prefer_users_modules(folder)
import runpy
runpy.run_path(str(folder / "train.py"), run_name="__main__")
import library, json.tool, statistics as again, json as too
assert (again, too) == python
assert json.tool.json is json
"""


@pytest.mark.process
def test_users_files_get_the_users_modules_and_libraries_those_that_they_know(
    tmp_path: Path,
) -> None:
    for folder in ("script", "library"):
        (tmp_path / folder).mkdir()
    (tmp_path / "script/statistics.py").write_text("WORD = 'mine'\nimport math\n")
    (tmp_path / "script/json").mkdir()
    (tmp_path / "script/json/__init__.py").write_text("from json.part import WORD\n")
    (tmp_path / "script/json/part.py").write_text("WORD = 'a package of mine'\n")
    (tmp_path / "script/helper.py").write_text("from statistics import WORD\n")
    (tmp_path / "script/train.py").write_text(
        "import library\nimport statistics, json, helper\nimport library\n"
        "print(statistics.WORD, helper.WORD, json.WORD, library.late())\n"
    )
    (tmp_path / "library/library.py").write_text(
        "import statistics\ndef late():\n"
        "    from statistics import mean\n    import json.decoder\n"
        "    return mean(json.loads('[1, 3]'))\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "script")],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.stdout, done.stderr) == ("mine mine a package of mine 2\n", "")
