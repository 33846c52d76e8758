from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHAPE = Path(__file__).parents[2] / "ci" / "shape.py"


def _shape(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SHAPE), str(folder)], capture_output=True, text=True, check=False
    )


def test_file_and_function_at_their_limits_pass(tmp_path: Path) -> None:
    docstring = '    """Does it.\n' + "\n" * 30 + '    """\n'
    function = "def f() -> None:\n" + docstring + "    pass\n" * 59
    (tmp_path / "a.py").write_text(function + "f()\n" * (600 - function.count("\n")))

    answer = _shape(tmp_path)

    assert answer.returncode == 0, answer.stdout


def test_longer_function_is_named_with_its_length(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("class A:\n    def f(self) -> None:\n" + "        pass\n" * 60)

    answer = _shape(tmp_path)

    assert answer.returncode == 1
    assert "a.py:2: f has 61 lines, 60 are allowed" in answer.stdout


def test_longer_file_is_named_with_its_length(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("f()\n" * 601)

    answer = _shape(tmp_path)

    assert answer.returncode == 1
    assert "a.py: 601 lines, 600 are allowed" in answer.stdout


@pytest.mark.parametrize("again", ["x = 2", "x: int = 2", "y = x = 2"])
def test_name_that_is_assigned_twice_is_a_leftover(tmp_path: Path, again: str) -> None:
    (tmp_path / "a.py").write_text(f"x = 1\n{again}\n")

    answer = _shape(tmp_path)

    assert answer.returncode == 1
    assert "a.py:2: x is assigned for the second time" in answer.stdout


def test_declaration_and_alternatives_are_no_second_assignment(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x: int\nx = 1\nif x:\n    x = 2\nx += 1\n")

    answer = _shape(tmp_path)

    assert answer.returncode == 0, answer.stdout


def test_folder_without_python_files_is_a_mistake(tmp_path: Path) -> None:
    assert _shape(tmp_path).returncode == 1
