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


def _id_of(package: Path) -> str:
    return str(package.relative_to(ROOT))


@pytest.mark.parametrize("package", PACKAGES, ids=_id_of)
def test_page_of_a_package_names_all_its_files(package: Path) -> None:
    page = (package / "DESIGN.md").read_text(encoding="utf-8")
    files = {path.name for path in package.glob("*.py")} - {"__init__.py"}

    assert files - set(re.findall(r"`(\w+\.py)`", page)) == set()


def test_each_package_stands_in_the_layers() -> None:
    plan = configparser.ConfigParser()
    plan.read(ROOT / ".importlinter", encoding="utf-8")
    layers = set(re.findall(r"[\w.]+", plan["importlinter:contract:packages"]["layers"]))
    below = {package.name for package in PACKAGES if package.parent.name == "runtime"}

    assert layers == {f"holdfast.runtime.{name}" for name in below} | {
        "holdfast.testing",
        "holdfast.runtime.errors",
        "holdfast.checkpoint",
        "holdfast.recovery",
    }


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
