"""Makes a site of the pages in docs/, for ``mkdocs build --strict``.

Pages are read in the repository, too, so their links lead to files beside docs/.  On the site a
few of these are pages of their own (``_BESIDE``), and a link to any other file is its text alone.
The reference of classes lists what ``holdfast`` exports, in the order of its homes.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

import holdfast

_ROOT = Path(__file__).resolve().parents[1]
_BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "bench/README.md": "benchmarks.md",
}
"""Files of the repository that the site shows, and the names of their pages."""
_ADDED = frozenset(_BESIDE.values()) - {"index.md"}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages that stand beside docs/, and the reference of classes."""
    for source, page in _BESIDE.items():
        if page in _ADDED:
            files.append(File.generated(config, page, content=(_ROOT / source).read_text("utf-8")))
    files.append(File.generated(config, "classes.md", content=_classes()))
    return files


def on_page_markdown(markdown: str, *, page: Any, config: Any, files: Files) -> str:
    """Point links at the pages of the site."""
    here = page.file.src_uri
    source = next((path for path, name in _BESIDE.items() if name == here), f"docs/{here}")
    folder = posixpath.dirname(source if here in _ADDED else f"docs/{here}")

    def moved(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        path, hash_sign, heading = target.partition("#")
        if "://" in path or not path:
            return match[0]
        found = posixpath.normpath(posixpath.join(folder, path))
        name = _BESIDE.get(found, found.removeprefix("docs/"))
        if files.get_file_from_path(name) is None:
            return text
        near = posixpath.relpath(name, posixpath.dirname(here) or ".")
        return f"{mark}[{text}]({near}{hash_sign}{heading})"

    return _LINK.sub(moved, markdown)


def _classes() -> str:
    lines = ["# Classes and functions", "", "What `holdfast` exports, with the signatures."]
    for home, names in holdfast._HOMES.items():
        lines += [f"\n::: {home}.{name}" for name in names]
    return "\n".join([*lines, ""])
