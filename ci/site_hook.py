"""Makes a site of the pages in docs/, for ``mkdocs build --strict``.

Pages are read in the repository, too, so their links lead to files beside docs/.  On the site a
few of these are pages of their own (``_BESIDE``), and a link to any other file is its text alone.
Three pages are made here: the help of each command, what ``holdfast`` exports, and the examples.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

import click
from mkdocs.structure.files import File, Files

import holdfast
from holdfast.runtime.commands import main as cli

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
    files.append(File.generated(config, "examples.md", content=_examples()))
    files.append(File.generated(config, "classes.md", content=_classes()))
    files.append(File.generated(config, "commands.md", content=_commands()))
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
    """Return the page of what is exported; errors come last."""
    homes = sorted(holdfast._HOMES, key=lambda home: home.endswith("errors"))
    lines = ["# Classes and functions", "", "What a script imports from `holdfast`."]
    lines += [f"\n::: {home}.{name}" for home in homes for name in holdfast._HOMES[home]]
    return "\n".join([*lines, ""])


def _commands() -> str:
    """Return the page of all commands, each with the help that it prints itself."""
    group = cli.holdfast
    lines = ["# Commands", "", "What each command says with `--help`."]
    lines += [
        "[Options of run](options.md) has their names in `holdfast.toml` and the environment."
    ]
    with click.Context(
        group, info_name="holdfast", terminal_width=80, **group.context_settings
    ) as context:
        pages = {"holdfast": group.get_help(context)}
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            with click.Context(command, context, name, terminal_width=80) as inner:
                pages[f"holdfast {name}"] = command.get_help(inner)
    for title, text in pages.items():
        lines += ["", f"## {title}", "", "```text", click.unstyle(text), "```"]
    return "\n".join([*lines, ""])


def _examples() -> str:
    """Return the page of all examples, each with its own words before its text."""
    lines = ["# Examples", "", "Each runs with the commands that it names, from a checkout."]
    for path in sorted((_ROOT / "examples").glob("*.py")):
        text = path.read_text("utf-8")
        words = ast.get_docstring(ast.parse(text)) or ""
        code = text.split('"""', 2)[2].strip().removeprefix("from __future__ import annotations")
        title = path.stem[3:].replace("_", " ").capitalize()
        lines += ["", f"## {title}", "", words.replace("``", "`"), "", "```python"]
        lines += [f"# {path.name}", code.strip(), "```"]
    return "\n".join([*lines, ""])
