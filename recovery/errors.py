"""Errors of decisions, and the exit codes of jobs.

::

    RecoveryError
     ├─ FaultSyntaxError     the text of a fault cannot be understood
     ├─ FaultConflict        two faults of a plan have one address
     ├─ IllegalTransition    a machine got an event that its table does not list
     ├─ LedgerUnreadable     reduced ledger lanes are not whole numbers
     └─ ScheduleSyntaxError  the text of a schedule cannot be understood

A mistake of a caller within holdfast (a negative count, a worker that is not in the
world) is a ``ValueError``.  No caller handles those.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of the command line; documented in docs/failure-model.md."""

    DONE = 0
    PROGRAM_FAILED = 1
    USAGE = 2
    RECOVERY_IMPOSSIBLE = 70
    """The restart budget is spent, or nothing valid is left to restore."""
    STOPPED_EARLY = 75
    """Stopped with a checkpoint: run again to go on (``EX_TEMPFAIL`` of sysexits.h)."""
    RUN_DIRECTORY_BUSY = 76
    """Another job owns the run directory."""
    INTERRUPTED = 130
    TERMINATED = 143


class RecoveryError(Exception):
    """A decision could not be made."""


class FaultSyntaxError(RecoveryError):
    """The text of a fault cannot be understood."""


class FaultConflict(RecoveryError):
    """Two faults of a plan have one address."""


class IllegalTransition(RecoveryError):
    """A machine got an event that its table does not list; its state is unchanged."""


class LedgerUnreadable(RecoveryError):
    """Reduced ledger lanes are not the whole numbers that workers put in."""


class ScheduleSyntaxError(RecoveryError):
    """The text of a schedule cannot be understood."""
