"""The house: packages with a page each, in layers, without cycles."""

from __future__ import annotations

import ast
import configparser
import graphlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = ("runtime", "checkpoint", "recovery")
PACKAGES = sorted(
    init.parent
    for top in TOP
    for init in (ROOT / top).rglob("__init__.py")
    if "__pycache__" not in init.parts
)
BELOW_RUNTIME = [package for package in PACKAGES if package.parent.name == "runtime"]
MOST_LINES_OF_A_PAGE = 120


def _id_of(package: Path) -> str:
    return str(package.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES, ids=_id_of)
def test_page_of_a_package_names_its_noun_its_files_and_its_invariant(package: Path) -> None:
    page = (package / "DESIGN.md").read_text(encoding="utf-8")
    files = {path.name for path in package.glob("*.py")} - {"__init__.py"}

    assert page.startswith(f"# {package.name}: ")
    assert "**Invariant: " in page
    assert files - set(re.findall(r"`(\w+\.py)`", page)) == set()
    assert len(page.splitlines()) <= MOST_LINES_OF_A_PAGE


@pytest.mark.parametrize("package", PACKAGES, ids=_id_of)
def test_init_of_a_package_holds_a_docstring_and_nothing_else(package: Path) -> None:
    module = ast.parse((package / "__init__.py").read_text(encoding="utf-8"))

    assert ast.get_docstring(module)
    assert len(module.body) == 1


def test_packages_stand_in_the_layers_and_in_the_picture() -> None:
    plan = configparser.ConfigParser()
    plan.read(ROOT / ".importlinter", encoding="utf-8")
    layers = set(re.findall(r"[\w.]+", plan["importlinter:contract:packages"]["layers"]))
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = re.search(r"subgraph runtime\n(.*?)\n    end", page, re.DOTALL)
    assert picture is not None

    names = {package.name for package in BELOW_RUNTIME}

    assert layers == {f"holdfast.runtime.{name}" for name in names} | {
        "holdfast.testing",
        "holdfast.runtime.errors",
        "holdfast.checkpoint",
        "holdfast.recovery",
    }
    assert set(re.findall(r"\w+", picture[1])) == names


def test_no_modules_import_each_other_not_even_late() -> None:
    paths = [path for top in TOP for path in (ROOT / top).rglob("*.py")]
    names = {_name_of(path): path for path in paths if "__pycache__" not in path.parts}
    graph = {
        name: {
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module in names
        }
        for name, path in names.items()
    }

    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError

    assert set(order) == set(graph)


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("holdfast", *(part for part in parts if part != "__init__")))
