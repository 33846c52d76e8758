"""Functions of a module, replaced for a while."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

Functions: TypeAlias = Mapping[str, Callable[..., Any]]


@contextmanager
def replaced(owner: Any, functions: Functions) -> Iterator[None]:
    """Let a module or a class have other functions of these names."""
    originals = {name: getattr(owner, name) for name in functions}
    try:
        for name, function in functions.items():
            setattr(owner, name, function)
        yield
    finally:
        for name, original in originals.items():
            setattr(owner, name, original)
