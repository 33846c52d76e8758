"""Which heavy modules a script is going to need, so that warm processes import them first."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

_ALWAYS = ("numpy", "xxhash", "mpi4py", "h5py")
"""What every worker imports, whatever its script does."""

_BRINGS_ALONG = {"keras": ("tensorflow", "keras"), "tensorflow": ("tensorflow", "keras")}


def useful_preload(wanted: tuple[str, ...], script: Path) -> tuple[str, ...]:
    """Return the modules to import in warm processes.

    Of ``wanted``, those that the script names in an import; a script that
    cannot be parsed will import none.
    """
    try:
        imported = set(_imports(ast.parse(script.read_bytes())))
    except (SyntaxError, ValueError, OSError):
        return _ALWAYS
    needed = {name for module in imported for name in _BRINGS_ALONG.get(module, (module,))}
    return (*_ALWAYS, *(module for module in wanted if module in needed))


def _imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level names of all modules that are imported anywhere in ``tree``."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]
