"""The program of a script: which files its import statements lead to."""

from __future__ import annotations

import json
import os
import sysconfig
from pathlib import Path

import pytest

from holdfast.runtime.run.program import Program, changes, is_users, keep, kept

FILES = {
    "helper.py": "import numpy, os.path",
    "late.py": "",
    "unused.py": "",
    "broken.py": "import late, (",
    "pkg/__init__.py": "",
    "pkg/one.py": "from . import two\nfrom .deep.three import four",
    "pkg/two.py": "",
    "pkg/unused.py": "",
    "pkg/deep/__init__.py": "",
    "pkg/deep/three.py": "from ..up import x",
    "pkg/up.py": "",
    "loose/part.py": "",
    "numpy.py": "",
    "numpy_like/__init__.py": "",
}


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("import helper", "helper.py numpy.py"),
        ("def f():\n    import late", "late.py"),
        ("import pkg.two as t", "pkg/__init__.py pkg/two.py"),
        (
            "from pkg.one import a",
            "pkg/__init__.py pkg/deep/__init__.py pkg/deep/three.py pkg/one.py pkg/two.py "
            "pkg/up.py",
        ),
        ("from pkg import two, name", "pkg/__init__.py pkg/two.py"),
        ("from loose import part", "loose/part.py"),
        ("import broken", "broken.py"),
        ("import helper, (", ""),
        ("import importlib; importlib.import_module('helper')", ""),
        ("import holdfast, pytest, json", ""),
    ],
)
def test_program_has_what_the_import_statements_lead_to(
    tmp_path: Path, script: str, found: str
) -> None:
    for name, text in (FILES | {"train.py": script}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    assert " ".join(sorted(Program.of(tmp_path / "train.py").modules)) == found


def test_texts_are_kept_by_their_digests(tmp_path: Path) -> None:
    script, folder = tmp_path / "train.py", tmp_path / "program"
    script.write_text("one()")
    one = Program.of(script)
    keep(folder, one.texts.values())
    script.write_text("two()")
    two = Program.of(script)
    keep(folder, two.texts.values())

    assert one.script_sha256 != two.script_sha256
    assert {path.name for path in folder.iterdir()} == {one.script_sha256, two.script_sha256}
    assert kept(folder, str(two.script_sha256)) == b"two()"
    (folder / str(two.script_sha256)).write_text("too")
    with pytest.raises(OSError, match="is damaged"):
        kept(folder, str(two.script_sha256))


def test_script_that_cannot_be_read_has_no_digest(tmp_path: Path) -> None:
    assert Program.of(tmp_path / "gone.py").script_sha256 is None


def test_files_of_both_programs_are_compared() -> None:
    assert changes({"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "3", "d": "4"}) == ["b"]


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (json.__file__, False),
        (os.path.realpath(json.__file__), False),
        (pytest.__file__, False),
        (f"{sysconfig.get_path('platstdlib')}/json/__init__.py", False),
        ("/usr/lib/python3/dist-packages/yaml.py", False),
        ("/home/u/lib/python3_project/helper.py", True),
        ("/data/lib/python3/helper.py", True),
    ],
)
def test_library_is_what_this_python_has_it_for(file: str, *, expected: bool) -> None:
    assert is_users(file) is expected
