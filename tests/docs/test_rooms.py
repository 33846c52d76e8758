"""Every room has a page that can be read in one go and that names each of its files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("runtime", "checkpoint", "recovery")
MOST_LINES = 100
ROOMS = sorted(
    page.parent
    for layer in LAYERS
    for page in (ROOT / layer).rglob("__init__.py")
    if "__pycache__" not in page.parts
)


def _id_of(room: Path) -> str:
    return str(room.relative_to(ROOT))


def _page(room: Path) -> str:
    return (room / "DESIGN.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("room", ROOMS, ids=_id_of)
def test_page_is_there_and_short(room: Path) -> None:
    assert len(_page(room).splitlines()) <= MOST_LINES


@pytest.mark.parametrize("room", ROOMS, ids=_id_of)
def test_page_names_each_file(room: Path) -> None:
    files = {path.name for path in room.glob("*.py")} - {"__init__.py"}

    named = set(re.findall(r"`(\w+\.py)`", _page(room)))

    assert files - named == set()


@pytest.mark.parametrize("room", ROOMS, ids=_id_of)
def test_page_tells_purpose_and_invariant_and_what_is_not_done(room: Path) -> None:
    page = _page(room)

    assert page.startswith(f"# {room.name}: ")
    assert "**Invariant: " in page
    assert "must not" in page


@pytest.mark.parametrize("room", [room for room in ROOMS if room.name not in LAYERS], ids=_id_of)
def test_page_of_the_layer_leads_to_that_of_the_room(room: Path) -> None:
    assert f"({room.name}/DESIGN.md)" in _page(room.parent)


@pytest.mark.parametrize("layer", LAYERS)
def test_architecture_leads_to_each_layer(layer: str) -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    assert f"(../{layer}/DESIGN.md)" in architecture
