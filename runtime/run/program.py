"""The program of a job: its script, and the modules of the user's own that it imports.

What a job began with is what each of its launches runs, on every host.  So the client reads these
files once, names each by its digest, and keeps their texts in the run directory.  A worker that
finds another text on the disk runs the kept one (`script/modules.py`).

The modules are found by the import statements of the script and of each other, also by those within
functions.  A name that is made while the script runs is not found so: the worker that imports such
a module first keeps it for all others.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import json
import os
import re
import site
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.run.files import read_at_most, write_whole

_HOLDFAST = str(Path(__file__).parents[2])
_PATHS = (
    *map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")),
    *(*site.getsitepackages(), site.getusersitepackages()),
)
_LIBRARIES = tuple({f"{p}/" for path in _PATHS for p in (path, os.path.realpath(path))})
_OF_ANY_PYTHON = re.compile(r"/lib(64)?/python3\.\d+/|/(site|dist)-packages/")
_LARGEST_TEXT = 16 << 20
_MOST_FILES = 1000
"""What is beyond is kept by the worker that imports it first."""


def is_users(file: str) -> bool:
    """Return whether the code in a file is neither a library's nor holdfast's."""
    if file.startswith(("<", *_LIBRARIES)) or _OF_ANY_PYTHON.search(file):
        return False
    return not is_holdfasts(file)


def is_holdfasts(file: str) -> bool:
    """Return whether the code in a file is that of this package."""
    return file.startswith(f"{_HOLDFAST}/")


def digest_of(text: bytes) -> str:
    """Return the name of a text."""
    return hashlib.sha256(text).hexdigest()


def identity_of(files: Iterable[tuple[str, str]], *terms: object) -> str:
    """Return what a program is known by: its files, by name and digest, and how it is run."""
    return digest_of(json.dumps([sorted(files), *terms]).encode())


@dataclass(frozen=True, slots=True)
class Program:
    """The texts of a script and of the user's modules that it imports, by their real paths."""

    script: str
    texts: Mapping[str, bytes]

    @staticmethod
    def of(script: Path) -> Program:
        """Read the program of a script, as far as it can be read."""
        main = os.path.realpath(script)
        folders = [os.path.dirname(main), *(p for p in sys.path if p and is_users(f"{p}/"))]
        texts: dict[str, bytes] = {}
        waiting = [main]
        while waiting and len(texts) < _MOST_FILES:
            path = os.path.realpath(waiting.pop())
            if path in texts:
                continue
            with contextlib.suppress(OSError):
                if os.stat(path).st_size <= _LARGEST_TEXT:
                    texts[path] = Path(path).read_bytes()
                    waiting += _imported(texts[path], path, folders)
        return Program(main, texts)

    @property
    def text(self) -> bytes:
        """The text of the script itself; nothing if it cannot be read."""
        return self.texts.get(self.script, b"")

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each file, by its path."""
        return {path: digest_of(text) for path, text in self.texts.items()}

    @property
    def script_sha256(self) -> str | None:
        """The digest of the script itself, None if it cannot be read."""
        return self.digests.get(self.script)

    @property
    def modules(self) -> dict[str, str]:
        """The digests of the modules, by their paths from the script's folder."""
        folder = os.path.dirname(self.script)
        found = self.digests.items()
        return {os.path.relpath(path, folder): sha for path, sha in found if path != self.script}


def keep(folder: Path, texts: Iterable[bytes]) -> None:
    """Let the folder of a program hold texts by their digests; raises ``OSError``."""
    folder.mkdir(exist_ok=True)
    for text in texts:
        if not (folder / digest_of(text)).exists():
            write_whole(folder / digest_of(text), text)


def kept(folder: Path, name: str) -> bytes:
    """Return the text with a digest; raises ``OSError`` if it is not there, whole."""
    text = read_at_most(folder / name, _LARGEST_TEXT)
    if digest_of(text) != name:
        raise OSError(f"{folder / name} is damaged")
    return text


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the files of two programs that both have, with other texts."""
    return sorted(name for name, sha in before.items() if now.get(name, sha) != sha)


def _imported(text: bytes, path: str, folders: Sequence[str]) -> Iterator[str]:
    """Yield the files that the import statements of a file lead to."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return  # whoever imports it is told
    for name, level in imports(tree):
        above = os.path.join(os.path.dirname(path), *[".."] * (level - 1))
        yield from _files_of(name, [above] if level else folders)


def imports(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield each name that a text imports anywhere, and from how many folders above."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = ((node.module or "", alias.name) for alias in node.names)
            yield from ((".".join(filter(None, parts)), node.level) for parts in names)


def _files_of(name: str, folders: Sequence[str]) -> Iterator[str]:
    """Yield the files that run when a name with dots is imported from folders."""
    for part in name.split("."):
        stems = [os.path.join(folder, part) for folder in folders]
        found = next((file for stem in stems if (file := _file_at(stem))), None)
        if found is not None and is_users(found):  # by this name: it may be a link to elsewhere
            yield found
        is_package = found is None or found.endswith("__init__.py")
        folders = [] if not is_package else [os.path.dirname(found)] if found else stems
        # else a folder without a file of its own, or no module at all


def _file_at(stem: str) -> str | None:
    files = (os.path.join(stem, "__init__.py"), f"{stem}.py")
    return next((file for file in files if os.path.isfile(file)), None)
