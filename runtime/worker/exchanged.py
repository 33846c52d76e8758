"""Functions of Python that a script calls, exchanged in their modules.

A script may hand them on as it hands on Python's own: to another process, which knows them by
module and name, or to a class, which makes no methods of functions that are written in C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any


class _Exchanged(functools.partial[Any]):
    """A call in the place of a function; pickled by the function's name, as that one was."""

    def __reduce__(self) -> Any:
        return self.__name__  # type: ignore[attr-defined]

    def __get__(self, instance: object, owner: type | None = None) -> _Exchanged:
        return self


def exchange(module: Any, name: str, function: Callable[..., Any]) -> None:
    """Let calls of a module's function call ``function``, without another frame in between."""
    made = functools.update_wrapper(_Exchanged(function), getattr(module, name))
    made.__module__ = module.__name__  # posix.getpid stays as it was
    setattr(module, name, made)
