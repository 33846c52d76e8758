"""Calls at the end of a script: a worker ends without Python's own end of a process.

Python calls what was given to ``atexit.register`` when a process ends.  A worker ends by
``os._exit``, since finalisers of MPI and leftover threads may hang.  So the calls of the script,
and of the libraries that it has imported, are collected and made when the script has ended.
What the pool had imported before the script is left out: it is finalised by nobody.
"""

from __future__ import annotations

import atexit
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class ExitCalls:
    """What is to be called at the end, in the reverse order."""

    def __init__(self) -> None:
        self._calls: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def register(
        self, function: Callable[..., Any], /, *args: Any, **keywords: Any
    ) -> Callable[..., Any]:
        """Remember a call; the function is returned, so this may be a decorator."""
        self._calls.append((function, args, keywords))
        return function

    def unregister(self, function: Callable[..., Any]) -> None:
        """Forget every call of ``function``."""
        self._calls = [call for call in self._calls if call[0] != function]

    def make(self) -> None:
        """Make all calls, the last one first; an error is printed, and the next call is made."""
        while self._calls:
            function, args, keywords = self._calls.pop()
            try:
                function(*args, **keywords)
            except BaseException:  # the user's code, as Python itself treats it
                traceback.print_exc()


@contextmanager
def exit_calls() -> Iterator[None]:
    """Make the calls that are registered within the block at its end, however it ends."""
    calls = ExitCalls()
    pythons = atexit.register, atexit.unregister
    _replace(calls.register, calls.unregister)
    try:
        yield
    finally:
        calls.make()
        _replace(*pythons)


def _replace(register: Any, unregister: Any) -> None:
    atexit.register = register
    atexit.unregister = unregister
