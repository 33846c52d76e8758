"""Errors of decisions, and the exit codes of jobs.

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


class WrongText(ValueError):
    """A user's text cannot be understood as a fault or a schedule, or faults have one address."""


class IllegalTransition(Exception):
    """A machine got an event that its table does not list; its state is unchanged."""


class LedgerUnreadable(Exception):
    """Reduced ledger lanes are not the whole numbers that workers put in."""
