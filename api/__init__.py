"""A fault-tolerant MPI training runtime: after any death, the run ends with the same bytes.

A script and its tests need no other names than these.  A name is imported from its home
at its first use, so ``import holdfast`` itself loads neither NumPy nor TensorFlow::

    from holdfast import ArrayData, Trainer

``holdfast.testing`` runs whole jobs with faults in tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.runtime.commands.launch import LaunchFailed, LaunchResult, launch
    from holdfast.runtime.data.disk_data import HDF5Data, NpyData, WindowData
    from holdfast.runtime.data.samples import ArrayData, Data
    from holdfast.runtime.errors import (
        CheckpointsUnread,
        JobError,
        ProgramError,
        RecoveryImpossible,
        RunDirectoryBusy,
        StoppedEarly,
        StopRequested,
        UsageError,
    )
    from holdfast.runtime.keras.fit_call import fit
    from holdfast.runtime.model.replica import ContributionShape, Microbatch, Replica
    from holdfast.runtime.script.calls import shared
    from holdfast.runtime.training.stages import Result, Trainer, is_first

__all__ = [
    "ArrayData",
    "CheckpointsUnread",
    "ContributionShape",
    "Data",
    "HDF5Data",
    "JobError",
    "LaunchFailed",
    "LaunchResult",
    "Microbatch",
    "NpyData",
    "ProgramError",
    "RecoveryImpossible",
    "Replica",
    "Result",
    "RunDirectoryBusy",
    "StopRequested",
    "StoppedEarly",
    "Trainer",
    "UsageError",
    "WindowData",
    "fit",
    "is_first",
    "launch",
    "shared",
]

_HOMES = {
    "holdfast.runtime.errors": (
        "CheckpointsUnread",
        "JobError",
        "ProgramError",
        "RecoveryImpossible",
        "RunDirectoryBusy",
        "StopRequested",
        "StoppedEarly",
        "UsageError",
    ),
    "holdfast.runtime.keras.fit_call": ("fit",),
    "holdfast.runtime.data.disk_data": ("HDF5Data", "NpyData", "WindowData"),
    "holdfast.runtime.data.samples": ("ArrayData", "Data"),
    "holdfast.runtime.model.replica": ("ContributionShape", "Microbatch", "Replica"),
    "holdfast.runtime.commands.launch": ("LaunchFailed", "LaunchResult", "launch"),
    "holdfast.runtime.script.calls": ("shared",),
    "holdfast.runtime.training.stages": ("Result", "Trainer", "is_first"),
}


if not TYPE_CHECKING:  # type checkers know the names above, and should miss all others

    def __getattr__(name: str) -> object:
        """Import a public name from the file that owns it (PEP 562)."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(home), name)
        if name == "__version__":
            return importlib.import_module("importlib.metadata").version("holdfast-mpi")
        removed = importlib.import_module("holdfast.runtime.options.sources")
        sentence = removed.removal_of(f"{__name__}.{name}")
        if sentence is not None:  # `from holdfast import` shows no AttributeError
            raise ImportError(sentence)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return [*__all__, "testing"]
