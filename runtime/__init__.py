"""The acting layer: everything that touches a clock, a process, a socket, MPI or TensorFlow.

Each room is a package, whose docstring names its duties, the rooms that it imports, and its limits.
Scripts import from ``holdfast``; the paths that were documented before still work here.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING

__all__ = ["ArrayData", "Replica", "Trainer"]

_MOVED = {"replica": "holdfast.runtime.model.replica", "testing": "holdfast.testing"}


if TYPE_CHECKING:
    from holdfast.runtime.model.data import ArrayData
    from holdfast.runtime.model.replica import Replica
    from holdfast.runtime.training.trainer import Trainer
else:

    def __getattr__(name: str) -> object:
        """Return a name that older scripts import from here (PEP 562)."""
        if name in __all__:
            return getattr(importlib.import_module("holdfast"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Moved(ModuleType):
    """A module of older scripts: at its first use it loads the module that has replaced it."""

    def __getattr__(self, name: str) -> object:
        """Return the name from the module's new home.

        Libraries ask all modules for their files, which must load nothing.
        """
        if name.startswith("__") and name != "__all__":
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        home = _MOVED[self.__name__.rpartition(".")[2]]
        return getattr(importlib.import_module(home), name)


for _name in _MOVED:
    _module = _Moved(f"{__name__}.{_name}")
    sys.modules[_module.__name__] = _module
    globals()[_name] = _module
