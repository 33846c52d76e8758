"""What a worker tells of its script's files, and when it says that it cannot be sure."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process

PROGRAM = Path(__file__).resolve().parents[2] / "support" / "processes" / "watches_scripts.py"
SCRIPTS: dict[str, tuple[str, str]] = {
    "reads": ("import numpy as np\nprint(np.load('data.npy').sum(), file=open(2, 'w'))", ""),
    "writes": ("import os\nos.makedirs('out', exist_ok=True)\nopen('out/w', 'w').write('1')", ""),
    "lists": ("import os\nos.listdir('.')", ""),
    "imports": ("import beside", ""),
    "environment": ("import os\nos.environ.get('EPOCHS')", "environment.py names environ"),
    "native": ("def late():\n    import h5py", "native.py imports h5py"),
    "folder": ("def late(of):\n    of.image_dataset_from_directory('x')", "names image_dataset"),
    "lazy": ("import sys, types\nclass Lazy(types.ModuleType):\n    def __getattribute__(self, "
             "name):\n        raise RuntimeError(name)\nsys.modules['lazy'] = Lazy('lazy')", ""),
    "shell": ("import os\nos.system('true')", "it called os.system"),
    "maps": ("import numpy as np\nnp.memmap('data.npy')", ""),
    "asks": ("import os\nos.path.exists('more.npy')", "asks.py names exists"),
    "library": ("def late(data):\n    data.load('x')", "library.py names load"),
    "words": ("def late(of):\n    of(vocabulary='words.txt')", "words.py names vocabulary"),
    "forks": ("import os\nif not os.fork(): os._exit(0)", "it called os.fork"),
    "edited": ("import pathlib, time\ntime.sleep(0.05)\npathlib.Path('edited.py').touch()",
               "edited.py was changed while it ran"),
    "many": ("for n in range(300):\n    open('data.npy').close()\n    "
             "import os; os.link('data.npy', f'{n}'); open(f'{n}').close()", "more than 200 files"),
    "linked": ("import os\nos.symlink('data.npy', 'link')\nopen('link').close()\n"
               "os.symlink('nowhere', 'dangling')\nopen('w', 'w').write('1')", ""),
    "hidden": ("import os\ngetattr(os, 'sys' + 'tem')('true')", "it called os.system"),
}  # fmt: skip


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return what was told of each script, all run by one process."""
    folders = {name: tmp_path_factory.mktemp(name) for name in SCRIPTS}
    for name, folder in folders.items():
        (folder / f"{name}.py").write_text(SCRIPTS[name][0])
    (folders["imports"] / "beside.py").write_text("open('data.npy', 'rb').close()")
    make = "import sys, numpy as np\nfor place in sys.argv[1:]: np.save(place, np.ones(3))"
    places = [folder / "data.npy" for folder in folders.values()]
    subprocess.run([sys.executable, "-c", make, *places], check=True)
    scripts = [folder / f"{name}.py" for name, folder in folders.items()]
    support = os.pathsep.join(str(PROGRAM.parents[1] / name) for name in (".", "processes"))
    path = os.pathsep.join([support, str(folders["imports"])])
    found = subprocess.run(
        [sys.executable, PROGRAM, *scripts],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return dict(zip(folders, map(json.loads, found.stdout.splitlines()), strict=True))


def names(lines: list[str]) -> set[str]:
    return {Path(line.partition(" ")[2]).name for line in lines}


@pytest.mark.parametrize("name", SCRIPTS)
def test_doubt_is_told_with_its_reason_and_nothing_else(
    told: dict[str, dict[str, Any]], name: str
) -> None:
    reason, fields = SCRIPTS[name][1], told[name]

    assert fields["event"] == "script_ended"
    assert (reason in fields["unsure"]) if reason else fields["unsure"] == ""
    assert not reason or (fields["read"], fields["written"]) == ((), ()) or not fields["read"]


def test_script_and_data_are_told_as_they_were_when_they_were_read(
    told: dict[str, dict[str, Any]],
) -> None:
    assert names(told["reads"]["read"]) == {"reads.py", "data.npy"}


def test_modules_of_the_user_are_told_and_what_they_read(told: dict[str, dict[str, Any]]) -> None:
    assert {"imports.py", "beside.py", "data.npy"} <= names(told["imports"]["read"])


def test_what_was_written_is_told_with_its_size(told: dict[str, dict[str, Any]]) -> None:
    (line,) = told["writes"]["written"]
    assert (line.partition(" ")[0], Path(line).name) == ("1", "w")


def test_directory_that_the_script_lists_is_told(told: dict[str, dict[str, Any]]) -> None:
    assert {Path(line).name[:5] for line in told["lists"]["read"]} == {"lists"}
    assert len(told["lists"]["read"]) == 2


def test_mapped_file_and_a_link_are_told_by_the_names_that_the_script_used(
    told: dict[str, dict[str, Any]],
) -> None:
    assert {"maps.py", "data.npy"} <= names(told["maps"]["read"])
    assert {"linked.py", "link"} <= names(told["linked"]["read"])
    assert "w" in names(told["linked"]["written"])
