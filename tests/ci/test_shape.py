"""The limits of ``ci/shape.py``: of a file, of a function, and of the whole house."""

from __future__ import annotations

import shutil
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


@pytest.mark.parametrize(
    "name", ["source", "core", "training", "people", "tests", "tools", "modules", "packages"]
)
def test_house_above_its_budget_is_named_with_both_figures(tmp_path: Path, name: str) -> None:
    for file in ("api/__init__.py", "api/a.py", "runtime/b.py", "tests/t.py", "bench/c.py"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("x = 1\n")
    (tmp_path / "ci").mkdir()
    script = shutil.copy(SHAPE, tmp_path / "ci")
    own = len(SHAPE.read_text().splitlines())
    figures = {"source": 3, "core": 1, "training": 2, "people": 0, "modules": 2, "packages": 1}
    figures |= {"tests": 1, "tools": 1 + own}

    def shape(budget: dict[str, int]) -> subprocess.CompletedProcess[str]:
        table = "".join(f"{key} = {most}\n" for key, most in budget.items())
        (tmp_path / "ci" / "shape.toml").write_text(f"[lines]\n{table}")
        return subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)

    assert shape(figures).returncode == 0, shape(figures).stdout
    assert "lower the figure" in shape(figures | {name: figures[name] + 1}).stdout
    answer = shape(figures | {name: figures[name] - 1})
    assert answer.returncode == 1
    assert f"{name} are {figures[name]}, {figures[name] - 1} are allowed" in answer.stdout
