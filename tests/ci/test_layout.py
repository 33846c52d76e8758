"""The rooms stay rooms: each one has its place in the plan of the house."""

from __future__ import annotations

import ast
import configparser
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERED = ("runtime", "checkpoint")
ROOMS = [init.parent for layer in LAYERED for init in sorted((ROOT / layer).glob("*/__init__.py"))]


def _id_of(folder: Path) -> str:
    return str(folder.relative_to(ROOT))


def _layers() -> set[str]:
    """Return every module that stands in the layers contract."""
    plan = configparser.ConfigParser()
    plan.read(ROOT / ".importlinter", encoding="utf-8")
    lines = plan["importlinter:contract:rooms"]["layers"].split("\n")
    return {name.strip() for line in lines for name in line.split("|") if name.strip()}


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
