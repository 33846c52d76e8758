"""Rooms say what they import, a picture shows it, and no two files need each other."""

from __future__ import annotations

import ast
import graphlib
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise, product
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = [
    (layer, page.parent.name)
    for layer in ("runtime", "checkpoint")
    for page in sorted((ROOT / layer).glob("*/__init__.py"))
]
_SENTENCE = re.compile(r"Imports (no other room|``[^.]*)\.")
_LAYERS = {"checkpoint", "recovery"}
_PACKAGES = ("runtime", "checkpoint", "recovery")


def _imported(layer: str, room: str) -> set[str]:
    """Return the rooms and layers that a room imports, not only to check types."""
    found: set[str] = set()
    for path in (ROOT / layer / room).glob("*.py"):
        for name in _modules(ast.parse(path.read_text(encoding="utf-8"))):
            first, *rest = name.removeprefix("holdfast.").split(".")
            if name.startswith("holdfast.") and first == layer:
                found.update(rest[:1])
            elif name.startswith("holdfast."):
                found.add(first)
    return found - {room, "errors"}


def _modules(tree: ast.AST) -> Iterator[str]:
    """Yield the names of all modules that are imported anywhere in ``tree``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module
        yield from _modules(node)


@pytest.mark.parametrize(("layer", "room"), ROOMS)
def test_room_names_what_it_imports(layer: str, room: str) -> None:
    said = ast.get_docstring(ast.parse((ROOT / layer / room / "__init__.py").read_text()))

    found = _SENTENCE.search(" ".join((said or "").split()))

    assert found is not None
    assert set(re.findall(r"``(\w+)``", found[1])) == _imported(layer, room)


def _reached(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    """Return all that can be reached from ``start``."""
    found: set[str] = set()
    ahead = set(arrows.get(start, ()))
    while ahead:
        room = ahead.pop()
        found.add(room)
        ahead |= arrows.get(room, set()) - found
    return found


def _drawn() -> dict[str, set[str]]:
    """Return the arrows between rooms of the runtime as the architecture draws them."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    picture = re.search(r"subgraph runtime\n(.*?)\n    end", page, re.DOTALL)
    assert picture is not None
    arrows: dict[str, set[str]] = {}
    for line in picture[1].splitlines():
        ends = [set(end.split(" & ")) for end in line.strip().split(" --> ")]
        for left, right in pairwise(ends):
            for start, end in product(left, right):
                arrows.setdefault(start, set()).add(end)
    return arrows


def test_picture_shows_each_way_between_rooms_and_no_other() -> None:
    """An arrow that follows from others is left out."""
    arrows = _drawn()
    imports = {room: _imported("runtime", room) - _LAYERS for layer, room in ROOMS}

    assert {start: _reached(start, arrows) for start in imports} == {
        start: _reached(start, imports) for start in imports
    }
    assert [(a, b) for a, ends in arrows.items() for b in ends if b not in imports[a]] == []


def _graph() -> dict[str, set[str]]:
    """Return what each module imports, also late or to check types.

    The two packages that name public homes are left out: nobody imports a name from there.
    """
    paths = [path for layer in _PACKAGES for path in (ROOT / layer).rglob("*.py")]
    names = {_name_of(path): path for path in paths if "__pycache__" not in path.parts}
    del names["holdfast.runtime"]
    found = {}
    for name, path in names.items():
        imported = (
            node.module
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom) and node.module in names
        )
        found[name] = {str(module) for module in imported}
    return found


def _name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("holdfast", *(part for part in parts if part != "__init__")))


def test_no_modules_import_each_other() -> None:
    graph = _graph()
    assert graph

    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError

    assert set(order) == set(graph)
