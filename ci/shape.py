"""Refuse files and functions that have grown too long for one reading, and a house that has.

A leftover is a name that a file assigns twice at its top level: the first value is lost.

Usage: ``python ci/shape.py [FOLDER...]``; prints each offender and exits 1 if there is any.
Without a folder it looks at the whole source, and compares totals with the budget in ci/shape.toml.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE_LINES = 600
FUNCTION_LINES = 60
ROOT = Path(__file__).resolve().parents[1]
SOURCE = ("api", "runtime", "recovery", "checkpoint")
_IN_TRAINING = "model", "data", "script", "training", "keras"
TRAINING = ("api", *(f"runtime/{name}" for name in _IN_TRAINING))
PEOPLE = ("runtime/commands",)
"""The outer rings of docs/architecture.md; the rest of the source is the core."""


def offences(path: Path) -> Iterator[str]:
    """Yield one sentence for each limit that the file breaks."""
    source = path.read_text(encoding="utf-8")
    lines = len(source.splitlines())
    if lines > FILE_LINES:
        yield f"{path}: {lines} lines, {FILE_LINES} are allowed; give its second noun a file"
    module = ast.parse(source, str(path))
    for name, again in assigned_twice(module):
        yield f"{path}:{again.lineno}: {name} is assigned for the second time; keep one of them"
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            length = function_lines(node)
            if length > FUNCTION_LINES:
                yield (
                    f"{path}:{node.lineno}: {node.name} has {length} lines, "
                    f"{FUNCTION_LINES} are allowed; name its parts"
                )


def assigned_twice(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Yield each name with the plain assignment that gives it another value.

    Assignments within an ``if`` or a ``try`` are alternatives, so they do not count.
    """
    seen: set[str] = set()
    for statement in module.body:
        for name in _names_assigned(statement):
            if name in seen:
                yield name, statement
            seen.add(name)


def _names_assigned(statement: ast.stmt) -> list[str]:
    match statement:
        case ast.Assign(targets=targets):
            return [target.id for target in targets if isinstance(target, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [name]
    return []


def function_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines from ``def`` to the end, without the docstring."""
    docstring = 0
    first = node.body[0]
    if ast.get_docstring(node, clean=False) is not None:
        docstring = (first.end_lineno or first.lineno) - first.lineno + 1
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring


def python_files(*folders: str | Path) -> list[Path]:
    """Return the Python files below folders, in order."""
    return sorted(path for folder in folders for path in Path(folder).rglob("*.py"))


def totals(root: Path) -> dict[str, int]:
    """Return what the budget bounds, by name: lines of Python, modules, packages."""

    def lines(*folders: str) -> int:
        files = python_files(*(root / folder for folder in folders))
        return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)

    names = [path.name for path in python_files(*(root / folder for folder in SOURCE))]
    packages = names.count("__init__.py")
    return {
        "source": lines(*SOURCE),
        "core": lines(*SOURCE) - lines(*TRAINING, *PEOPLE),
        "training": lines(*TRAINING),
        "people": lines(*PEOPLE),
        "tests": lines("tests"),
        "tools": lines("ci", "bench"),
        "modules": len(names) - packages,
        "packages": packages,
    }


def budget(root: Path) -> dict[str, dict[str, int]]:
    """Return the tables of ci/shape.toml."""
    return dict(tomllib.loads((root / "ci" / "shape.toml").read_text(encoding="utf-8")))


def overruns(root: Path) -> Iterator[str]:
    """Yield one sentence for each total above its budget; print what is left of the others."""
    allowed = {name: most for table in budget(root).values() for name, most in table.items()}
    for name, total in totals(root).items():
        if total > allowed[name]:
            yield (
                f"ci/shape.toml: {name} are {total}, {allowed[name]} are allowed; delete as much, "
                "or raise the figure and write the reason beside it"
            )
        elif total < allowed[name]:
            print(f"shape: {name} are {total}, {allowed[name]} are allowed; lower the figure")


def main(folders: list[str]) -> int:
    """Print every offence under the folders; return the exit code."""
    files = python_files(*(folders or (ROOT / folder for folder in SOURCE)))
    if not files:
        print(f"shape: no Python files under {', '.join(folders) or ROOT}")
        return 1
    found = [offence for path in files for offence in offences(path)]
    found += [] if folders else overruns(ROOT)
    print("\n".join(found) if found else f"shape: {len(files)} files are in shape")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
