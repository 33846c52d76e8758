"""README's install line is enough for its own commands, and for the examples."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import holdfast_code
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = re.search(r"^pip install '\.\[([\w,]+)\]'", README, re.MULTILINE)

BLOCKER = """
import sys

class OnlyTheInstalled:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in {banned!r}:
            raise ModuleNotFoundError(f"{{name}} is not on the install line", name=name)

sys.meta_path.insert(0, OnlyTheInstalled)
"""


def installed() -> set[str]:
    """Return the names of all distributions that the install line brings."""
    assert EXTRAS is not None
    wanted = [*PROJECT["dependencies"]]
    for extra in EXTRAS[1].split(","):
        wanted += PROJECT["optional-dependencies"][extra]
    found: set[str] = set()
    while wanted:
        needed = Requirement(wanted.pop())
        name = _normal(needed.name)
        if name in found or not _applies(needed):
            continue
        found.add(name)
        wanted += importlib.metadata.requires(name) or []
    return found


def _applies(needed: Requirement) -> bool:
    return needed.marker is None or needed.marker.evaluate({"extra": ""})


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@functools.cache
def banned() -> frozenset[str]:
    """Return the top-level modules that other distributions of this environment have."""
    there = installed()
    return frozenset(
        module
        for module, names in importlib.metadata.packages_distributions().items()
        if there.isdisjoint(map(_normal, names)) and module != "holdfast"
    )


def imports_of(text: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example_imports_what_is_installed_or_names_it(example: Path) -> None:
    text = example.read_text(encoding="utf-8")

    named = re.findall(r"`pip install (\w+)`", text)
    assert banned().isdisjoint({*imports_of(text)} - {*named})


def test_what_metrics_and_the_tensorboard_callback_want_is_installed() -> None:
    assert {"prometheus-client", "tensorboard"} <= installed()
    assert "scikit-learn" not in installed()


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment whose Pythons import only what the install line brings."""
    (tmp_path / "only").mkdir()
    text = BLOCKER.format(banned=sorted(banned()))
    (tmp_path / "only" / "sitecustomize.py").write_text(text, encoding="utf-8")
    return os.environ | {"PYTHONPATH": str(tmp_path / "only"), "TF_CPP_MIN_LOG_LEVEL": "3"}


def run(command: str, cwd: Path, environment: dict[str, str]) -> str:
    """Run a command line of holdfast; return what it has printed."""
    program, *words = shlex.split(command)
    assert program == "holdfast"
    found = subprocess.run(
        [sys.executable, "-m", "holdfast", *words],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, f"{command}: {found.stderr}"
    return found.stdout


@pytest.mark.mpi
@pytest.mark.tensorflow
def test_first_run_and_the_commands_after_it_work_as_readme_has_them(
    tmp_path: Path,
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (script,) = re.findall(r"```python\n(# train\.py.*?)```", README, re.DOTALL)
    (tmp_path / "train.py").write_text(script.replace("epochs=10", "epochs=1"), encoding="utf-8")
    blocked = subprocess.run(
        [sys.executable, "-c", "import optuna"], env=environment, capture_output=True, check=False
    )
    assert b"optuna is not on the install line" in blocked.stderr
    first, *_ = re.findall(r"^holdfast run -n 4 train\.py", README, re.MULTILINE)
    rows = re.findall(r"`(holdfast (?:status|report|inspect|verify|export) [^`]*)`", README)

    run(first, tmp_path, environment)

    assert (tmp_path / "model.weights.h5").stat().st_size > 0
    assert len(rows) >= 5
    monkeypatch.chdir(tmp_path)
    for command in rows:
        assert holdfast_code(*shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out
