"""The user's own modules: which of them the script gets, and the digest of script and modules.

Warm processes may have imported another module of the same name already.  A ``statistics.py``
beside the script is imported in place of Python's own, as ``python train.py`` does, where the
user's files ask for it.  Everything else goes on with the module that it knows: libraries import
more while they run, and would break on the user's file.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from holdfast.checkpoint.digest import Digest
from holdfast.runtime.evidence.stacks import Frame

_OF_PYTHONS_START = frozenset({
    "__main__", "_collections_abc", "_sitebuiltins", "abc", "codecs", "encodings", "genericpath",
    "io", "os", "posixpath", "site", "sitecustomize", "stat", "usercustomize", "zipimport",
})  # fmt: skip
"""Plain Python has imported these before the script, so a file beside it does not count."""

_OURS = frozenset(
    {"h5py", "holdfast", "keras", "mpi4py", "numpy", "psutil", "tensorflow", "xxhash"}
)
"""Without these there is no training."""

_LARGEST_TEXT = 16 << 20
"""A larger file counts by its name alone: a module may be a library in itself."""


def prefer_users_modules(folder: Path) -> None:
    """Let the files in ``folder`` import the modules there, and all others what they know."""
    beside: list[str] = []
    with contextlib.suppress(OSError):
        beside = [file.stem for file in folder.iterdir() if _is_module(file)]
    loaded = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    names = hidden(beside, loaded, str(folder))
    if names:
        builtins.__import__ = _Importer(str(folder), names)


def hidden(beside: Sequence[str], loaded: Mapping[str, str | None], folder: str) -> list[str]:
    """Return the names of modules ``beside`` a script that are loaded from another place.

    ``loaded`` has the file of each loaded module, by its name; built-in ones have none.
    """
    fixed = _OF_PYTHONS_START | _OURS | set(sys.builtin_module_names)
    return sorted(
        name
        for name in beside
        if name in loaded
        and name not in fixed
        and not (loaded[name] or "").startswith(f"{folder}/")
    )


def _is_module(file: Path) -> bool:
    return file.suffix == ".py" or (file / "__init__.py").is_file()


class _Importer:
    """The place of ``__import__``: one set of modules for the user's files, one for others."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._folder = folder
        self._names = frozenset(names)
        self._import = builtins.__import__
        self._known = self._taken()

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,  # noqa: A002  (as in Python's own)
        locals: Mapping[str, Any] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """Import a module as ``__import__`` does."""
        is_known = level == 0 and name.partition(".")[0] in self._names
        if not is_known or self._is_of_user(globals):
            return self._import(name, globals, locals, fromlist or (), level)
        with self._as_known():
            return self._import(name, globals, locals, fromlist or (), level)

    def _is_of_user(self, importer: Mapping[str, Any] | None) -> bool:
        file = "" if importer is None else str(importer.get("__file__") or "")
        return file.startswith(f"{self._folder}/")

    @contextlib.contextmanager
    def _as_known(self) -> Iterator[None]:
        users = self._taken()
        sys.modules.update(self._known)
        try:
            yield
        finally:
            self._known = self._taken()
            sys.modules.update(users)

    def _taken(self) -> dict[str, ModuleType]:
        """Take the modules of these names out of the list of all."""
        found = [name for name in sys.modules if name.partition(".")[0] in self._names]
        return {name: sys.modules.pop(name) for name in found}


def script_digest(script: Path, argv: Sequence[str]) -> str:
    """Return the digest of a script's text, its arguments and its own modules.

    Modules that are imported later have no part in it.
    """
    digest = Digest()
    digest.update(repr(tuple(argv)).encode())
    for file in sorted({str(script.resolve()), *_own_files()}):
        try:
            path = Path(file)
            text = path.read_bytes() if path.stat().st_size <= _LARGEST_TEXT else b""
        except OSError:
            continue
        digest.update(path.name.encode() + b"\0" + text)
    return digest.hexdigest()


def _own_files() -> set[str]:
    """Return the files of all imported modules that are neither a library's nor holdfast's."""
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file for file in files if isinstance(file, str) and _is_users(file)}


@functools.cache
def _is_users(file: str) -> bool:
    return Frame(file, "", "").is_users
