"""The names that the documentation imports are the public ones, and each of those is described."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
import holdfast.testing

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "README.md", *(ROOT / "docs").rglob("*.md")))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
HEAVY = ("h5py", "keras", "mpi4py", "numpy", "tensorflow")

_PYTHON = re.compile(r"^```python$(.*?)^```$", re.MULTILINE | re.DOTALL)


def _imported(source: str, module: str) -> set[str]:
    """Return the names that ``source`` imports from ``module``."""
    return {
        alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ImportFrom) and node.module == module
        for alias in node.names
    }


def _sources() -> Iterator[str]:
    yield from (path.read_text(encoding="utf-8") for path in EXAMPLES)
    for page in PAGES:
        yield from _PYTHON.findall(page.read_text(encoding="utf-8"))


def test_code_of_docs_and_examples_imports_public_names() -> None:
    imported = {name for source in _sources() for name in _imported(source, "holdfast")}

    assert imported - {*holdfast.__all__, "testing"} == set()
    assert "Trainer" in imported


def test_code_of_docs_imports_names_of_testing_that_are_there() -> None:
    imported = {name for source in _sources() for name in _imported(source, "holdfast.testing")}

    assert imported - set(dir(holdfast.testing)) == set()
    assert "run_job" in imported


@pytest.mark.parametrize("name", [*holdfast.__all__, "holdfast.testing"])
def test_every_public_name_is_described(name: str) -> None:
    """In bold, or at the head of a row."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")

    assert re.search(rf"^(\*\*|\| )`{re.escape(name)}\b[^`\n]*`", page, re.MULTILINE)


def test_every_public_name_is_in_its_home() -> None:
    assert all(getattr(holdfast, name).__name__ == name for name in holdfast.__all__)


def test_version_is_that_of_the_package() -> None:
    assert holdfast.__version__ == importlib.metadata.version("holdfast-mpi")


def test_importing_holdfast_loads_no_heavy_library() -> None:
    program = f"import sys, holdfast; print(*set({HEAVY}) & set(sys.modules))"

    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.split() == []
