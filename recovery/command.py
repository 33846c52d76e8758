"""What the supervisor is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.recovery.world import WorkerId


@dataclass(frozen=True, slots=True)
class Launch:
    """Start an MPI job of ``workers``, in rank order, whose first world has ``generation``."""

    generation: int
    workers: tuple[WorkerId, ...]
    relaunch: int
    reason: str


@dataclass(frozen=True, slots=True)
class KillLaunch:
    """Kill every process of the launch."""

    reason: str


@dataclass(frozen=True, slots=True)
class AskToStop:
    """Ask all workers to save at the next step and stop."""


@dataclass(frozen=True, slots=True)
class End:
    """The job is over."""

    exit_code: int
    reason: str
    traceback: str = ""


Command: TypeAlias = Launch | KillLaunch | AskToStop | End
