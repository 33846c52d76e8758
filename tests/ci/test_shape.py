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


DOCSTRING = '    """Does it.\n' + "\n" * 30 + '    """\n'
FUNCTION = "def f() -> None:\n" + DOCSTRING + "    pass\n" * 59


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (FUNCTION + "f()\n" * (600 - FUNCTION.count("\n")), ""),
        ("x: int\nx = 1\nif x:\n    x = 2\nx += 1\n", ""),
        (
            "class A:\n    def f(self) -> None:\n" + "        pass\n" * 60,
            "a.py:2: f has 61 lines, 60 are allowed",
        ),
        ("f()\n" * 601, "a.py: 601 lines, 600 are allowed"),
        ("x = 1\nx = 2\n", "a.py:2: x is assigned for the second time"),
        ("x = 1\nx: int = 2\n", "a.py:2: x is assigned for the second time"),
        ("x = 1\ny = x = 2\n", "a.py:2: x is assigned for the second time"),
    ],
    ids=["limits", "alternatives", "function", "file", "twice", "declared", "chain"],
)
def test_what_is_too_long_or_stands_twice_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "a.py").write_text(text)

    answer = _shape(tmp_path)

    assert answer.returncode == bool(said), answer.stdout
    assert said in answer.stdout


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
