"""Errors of a job, and the exit codes that they end with.

::

    JobError
    ├── UsageError            2   the request makes no sense as it stands
    ├── ProgramError          1   the user's program is at fault
    ├── RecoveryImpossible   70   budget spent, or nothing valid to restore
    │   └── WorldLost             not in place: a relaunch may
    ├── StoppedEarly         75   stopped with a checkpoint, run again
    │   └── StopRequested         because somebody asked for it
    ├── NotSaved             75   a running job did not make the checkpoint that was asked for
    └── RunDirectoryBusy     76   another job owns the run directory
"""

from __future__ import annotations

from enum import IntEnum
from typing import ClassVar


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


class JobError(Exception):
    """A job cannot go on, for a reason that one sentence explains."""

    exit_code: ClassVar[ExitCode] = ExitCode.PROGRAM_FAILED


class UsageError(JobError):
    """The request makes no sense as it stands; change it and run again."""

    exit_code = ExitCode.USAGE


class ProgramError(JobError):
    """The user's program is at fault."""

    exit_code = ExitCode.PROGRAM_FAILED


class RecoveryImpossible(JobError):
    """The restart budget is spent, or nothing valid is left to restore."""

    exit_code = ExitCode.RECOVERY_IMPOSSIBLE


class WorldLost(RecoveryImpossible):
    """The world cannot be repaired in place; a relaunch goes on from the newest checkpoint."""


class StoppedEarly(JobError):
    """The job stopped with a checkpoint; running it again resumes it."""

    exit_code = ExitCode.STOPPED_EARLY


class StopRequested(StoppedEarly):
    """The job was asked to stop, and did so at a step that all workers agreed on."""


class NotSaved(JobError):
    """A running job did not make the checkpoint that was asked for; asking again may help."""

    exit_code = ExitCode.STOPPED_EARLY


class RunDirectoryBusy(JobError):
    """Another job owns the run directory."""

    exit_code = ExitCode.RUN_DIRECTORY_BUSY
