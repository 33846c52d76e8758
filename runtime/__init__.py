"""The acting layer: processes, communicators, training loops and the command line.

``Trainer`` and ``ArrayData`` are all that a training script needs; they are
imported on first use, so that the launcher and the agent never load them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.runtime.model.data import ArrayData
    from holdfast.runtime.model.replica import Replica
    from holdfast.runtime.training.trainer import Trainer

__all__ = ["ArrayData", "Replica", "Trainer"]

_HOMES = {
    "ArrayData": "holdfast.runtime.model.data",
    "Replica": "holdfast.runtime.model.replica",
    "Trainer": "holdfast.runtime.training.trainer",
}


def __getattr__(name: str) -> object:
    """Import a public name from the file that owns it (PEP 562)."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
