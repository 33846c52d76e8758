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
    from holdfast.runtime.errors import (
        JobError,
        ProgramError,
        RecoveryImpossible,
        RunDirectoryBusy,
        StoppedEarly,
        StopRequested,
        UsageError,
    )
    from holdfast.runtime.fit.alone import fit
    from holdfast.runtime.model.data import ArrayData, Data
    from holdfast.runtime.model.replica import ContributionShape, Microbatch, Replica
    from holdfast.runtime.training.stages import is_first
    from holdfast.runtime.training.trainer import Result, Trainer

__all__ = [
    "ArrayData",
    "ContributionShape",
    "Data",
    "JobError",
    "Microbatch",
    "ProgramError",
    "RecoveryImpossible",
    "Replica",
    "Result",
    "RunDirectoryBusy",
    "StopRequested",
    "StoppedEarly",
    "Trainer",
    "UsageError",
    "fit",
    "is_first",
]

_HOMES = {
    "holdfast.runtime.errors": (
        "JobError",
        "ProgramError",
        "RecoveryImpossible",
        "RunDirectoryBusy",
        "StopRequested",
        "StoppedEarly",
        "UsageError",
    ),
    "holdfast.runtime.fit.alone": ("fit",),
    "holdfast.runtime.model.data": ("ArrayData", "Data"),
    "holdfast.runtime.model.replica": ("ContributionShape", "Microbatch", "Replica"),
    "holdfast.runtime.training.stages": ("is_first",),
    "holdfast.runtime.training.trainer": ("Result", "Trainer"),
}


if not TYPE_CHECKING:  # type checkers know the names above, and should miss all others

    def __getattr__(name: str) -> object:
        """Import a public name from the file that owns it (PEP 562)."""
        for home, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(home), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return [*__all__, "testing"]
