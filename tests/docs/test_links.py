"""What the documentation points at is there: links, headings, files and folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (
    *("api", "bench", "checkpoint", "ci", "docs", "examples"),
    *("recipes", "recovery", "runtime", "tests"),
)
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
PAGES = sorted(
    (*map(ROOT.joinpath, TOP), *(page for name in FOLDERS for page in (ROOT / name).rglob("*.md")))
)

_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
_CODE = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*(\.py|\.md|/)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_USERS = frozenset({"train.py", "checkpoints/"})
"""Names of a user's files, and of what lies in a run directory."""
_PLACEHOLDERS = frozenset({"NAME", "DESIGN"})


def _known() -> frozenset[str]:
    """Return all files and folders of the project, with a slash before and after a folder."""
    found = {f"/{name}" for name in TOP}
    for name in FOLDERS:
        found.add(f"/{name}/")
        for path in (ROOT / name).rglob("*"):
            found.add(f"/{path.relative_to(ROOT)}" + "/" * path.is_dir())
    return frozenset(found)


def _prose(page: Path) -> str:
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def _relative_links(page: Path) -> Iterator[tuple[str, str]]:
    """Yield path and heading of each link that stays in the project."""
    for inline, reference in _LINK.findall(_prose(page)):
        target = inline or reference
        if "://" not in target:
            path, _, heading = target.partition("#")
            yield path, heading


def _headings(page: Path) -> set[str]:
    """Return the headings of a page as links name them."""
    titles = re.findall(r"^#+ (.+)$", _prose(page), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


def _named_paths(page: Path) -> Iterator[str]:
    """Yield each text in code type that is the path of a file or folder and nothing else."""
    for text in _CODE.findall(_prose(page)):
        if _PATH.fullmatch(text) and not _PLACEHOLDERS.intersection(re.split(r"[/.]", text)):
            yield text


def _id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_links_lead_to_files_that_are_there(page: Path) -> None:
    links = list(_relative_links(page))

    missing = [path for path, _ in links if path and not (page.parent / path).exists()]

    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=_id_of)
def test_links_lead_to_headings_that_are_there(page: Path) -> None:
    links = [(path, heading) for path, heading in _relative_links(page) if heading]

    missing = [
        (path, heading)
        for path, heading in links
        if heading not in _headings((page.parent / path) if path else page)
    ]

    assert missing == []


def test_named_files_and_folders_are_there() -> None:
    known = _known()

    missing = [
        f"{_id_of(page)}: {name}"
        for page in PAGES
        for name in _named_paths(page)
        if name not in _USERS and not any(path.endswith(f"/{name}") for path in known)
    ]

    assert missing == []
