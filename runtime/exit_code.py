"""What ``holdfast run`` tells the shell and the batch scheduler."""

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
