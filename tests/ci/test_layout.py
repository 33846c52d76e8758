"""The rooms stay rooms: few modules in a folder, and each room in the plan of the house."""

from __future__ import annotations

import ast
import configparser
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MOST_MODULES = 17
"""More names in one list are more than a reader remembers."""
MORE = {"recovery": 25}
"""Folders that may have more: lists that are grouped by their pages."""
LAYERED = ("runtime", "checkpoint")


def _folders() -> Iterator[Path]:
    for top in ("api", "runtime", "checkpoint", "recovery", "tests", "bench", "ci"):
        yield ROOT / top
        yield from (path for path in sorted((ROOT / top).rglob("*")) if path.is_dir())


def _modules(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.py") if path.name != "__init__.py")


FOLDERS = [folder for folder in _folders() if _modules(folder)]
ROOMS = [init.parent for layer in LAYERED for init in sorted((ROOT / layer).glob("*/__init__.py"))]


def _id_of(folder: Path) -> str:
    return str(folder.relative_to(ROOT))


def _layers() -> set[str]:
    """Return every module that stands in the layers contract."""
    plan = configparser.ConfigParser()
    plan.read(ROOT / ".importlinter", encoding="utf-8")
    lines = plan["importlinter:contract:rooms"]["layers"].split("\n")
    return {name.strip() for line in lines for name in line.split("|") if name.strip()}


@pytest.mark.parametrize("folder", FOLDERS, ids=_id_of)
def test_folder_is_a_list_that_one_remembers(folder: Path) -> None:
    most = MORE.get(_id_of(folder), MOST_MODULES)

    assert len(_modules(folder)) <= most, f"{len(_modules(folder))} modules, {most} are allowed"


def test_runtime_is_nearly_empty_at_its_top() -> None:
    assert len(list((ROOT / "runtime").glob("*.py"))) <= 3


@pytest.mark.parametrize("room", ROOMS, ids=_id_of)
def test_init_of_a_room_holds_a_docstring_and_nothing_else(room: Path) -> None:
    module = ast.parse((room / "__init__.py").read_text(encoding="utf-8"))

    assert ast.get_docstring(module)
    assert len(module.body) == 1


@pytest.mark.parametrize("room", ROOMS, ids=_id_of)
def test_room_stands_in_the_layers(room: Path) -> None:
    assert f"holdfast.{room.parent.name}.{room.name}" in _layers()


def test_layers_name_only_what_is_there() -> None:
    files = {f"holdfast.{layer}.errors" for layer in LAYERED} | {"holdfast.testing"}
    rooms = {f"holdfast.{room.parent.name}.{room.name}" for room in ROOMS}

    assert _layers() - files - rooms == {"holdfast.recovery"}
