"""Calls back when a script has imported a module.

A worker prepares TensorFlow before the script's first use of it.  But a script that needs
no TensorFlow must not wait for its import.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.abc import Loader, MetaPathFinder
from types import ModuleType
from typing import TypeAlias

Around: TypeAlias = Callable[[], AbstractContextManager[None]]


_LOG_LINE = re.compile(rb"I\d{4} \d\d:\d\d:|WARNING: All log messages before absl::InitializeLog")
"""What TensorFlow writes while it is loaded, at any TF_CPP_MIN_LOG_LEVEL (2.21)."""


def when_imported(name: str, then: Callable[[], None], around: Around = nullcontext) -> None:
    """Call ``then`` once module ``name`` is imported: now if it is, else right after.

    ``around`` is entered while the module is imported.
    """
    if name in sys.modules:
        then()
    else:
        sys.meta_path.insert(0, _Watch(name, then, around))


@contextmanager
def without_log_lines() -> Iterator[None]:
    """Keep informative lines of a library's log from stderr; all other lines come at the end."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with os.fdopen(os.memfd_create("log"), "rb") as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            kept.seek(0)
            for line in kept:
                if not _LOG_LINE.match(line):
                    os.write(2, line)


class _Watch(MetaPathFinder):
    """Finds one module as all others find it, and watches its loader until it was imported.

    A question for the spec imports nothing, and an import may fail.  So the watch goes on until
    the watcher has heard of the module.
    """

    def __init__(self, name: str, then: Callable[[], None], around: Around) -> None:
        self._name = name
        self._then = then
        self._around = around
        self._has_told = False
        self._here = threading.local()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of the watched module, None for any other."""
        if name != self._name or self._is_looking_away:
            return None
        with self._looking_away():  # the search must not meet it, in this thread
            spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WatchedLoader(spec.loader, self)
        return spec

    def around(self) -> AbstractContextManager[None]:
        """Return what is entered while the module is imported."""
        return self._around()

    def imported(self) -> None:
        """Tell of the module, once."""
        if self._has_told or self._is_looking_away:
            return
        with self._looking_away():  # what hears of it may import the module itself
            self._then()
        self._has_told = True
        with contextlib.suppress(ValueError):  # the script may have made another list
            sys.meta_path.remove(self)

    @property
    def _is_looking_away(self) -> bool:
        return bool(getattr(self._here, "is_looking_away", False))

    @contextmanager
    def _looking_away(self) -> Iterator[None]:
        self._here.is_looking_away = True
        try:
            yield
        finally:
            self._here.is_looking_away = False


class _WatchedLoader(Loader):
    """A loader whose watch hears when its module is complete."""

    def __init__(self, loader: Loader, watch: _Watch) -> None:
        self._loader = loader
        self._watch = watch

    def __getattr__(self, name: str) -> object:
        """Answer questions about resources and source as the other loader does."""
        return getattr(self._loader, name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module as its own loader does."""
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code, then call back."""
        with self._watch.around():
            self._loader.exec_module(module)
        if module.__spec__ is not None and module.__spec__.loader is self:
            module.__spec__.loader = self._loader
        self._watch.imported()
