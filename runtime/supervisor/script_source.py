"""What a script says of itself before it runs: its imports, and the Keras backend that it sets."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.supervisor.preconditions import BACKEND


@dataclass(frozen=True, slots=True)
class ScriptSource:
    """A script as it was read; one that makes no sense imports nothing."""

    imported: frozenset[str] = frozenset()
    """The top-level names of all modules that it imports anywhere."""
    backend: str | None = None
    """The backend of Keras that it puts into its environment, None if it does not."""
    names_keras: bool = False

    @staticmethod
    def of(script: Path) -> ScriptSource:
        """Read a script."""
        try:
            text = script.read_bytes()
            tree = ast.parse(text)
        except (SyntaxError, ValueError, OSError):
            return ScriptSource()
        backend = next(_backends(tree), None)
        return ScriptSource(frozenset(_imports(tree)), backend, names_keras=b"keras" in text)

    @property
    def uses_keras(self) -> bool:
        """Whether it trains with Keras, by its own name or as a part of TensorFlow."""
        return self.names_keras and not self.imported.isdisjoint({"keras", "tensorflow"})

    @property
    def variables(self) -> dict[str, str]:
        """What it sets that warm processes must know: they import Keras before it runs."""
        return {} if self.backend is None else {BACKEND: self.backend}


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _backends(tree: ast.AST) -> Iterator[str]:
    """Yield each backend that ``os.environ["KERAS_BACKEND"] = ...`` or ``setdefault`` sets."""
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Subscript(slice=ast.Constant(value=name))],
                value=ast.Constant(value=str(backend)),
            ) if name == BACKEND:
                yield backend
            case ast.Call(
                func=ast.Attribute(attr="setdefault"),
                args=[ast.Constant(value=name), ast.Constant(value=str(backend))],
            ) if name == BACKEND and BACKEND not in os.environ:
                yield backend
