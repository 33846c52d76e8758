"""The user's own modules: which of them the script gets, and the digest of script and modules.

Warm processes may have imported another module of the same name already.  A ``statistics.py``
beside the script is imported in place of Python's own, as by ``python train.py``.  Modules that are
loaded keep what they have imported.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.checkpoint.digest import Digest
from holdfast.runtime.worker.stacks import Frame

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
    """Let the modules in ``folder`` be imported from now on, also if others have their names."""
    beside: list[str] = []
    with contextlib.suppress(OSError):
        beside = [file.stem for file in folder.iterdir() if _is_module(file)]
    loaded = {name: getattr(module, "__file__", None) for name, module in [*sys.modules.items()]}
    names = hidden(beside, loaded, str(folder))
    for name in [name for name in loaded if name.partition(".")[0] in names]:
        del sys.modules[name]


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
