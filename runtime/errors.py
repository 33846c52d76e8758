"""Errors of a job, and the exit codes that they end with.

::

    JobError
    ├── UsageError            2   the request makes no sense as it stands
    ├── ProgramError          1   the user's program is at fault
    ├── RecoveryImpossible   70   budget spent, or nothing valid to restore
    │   └── WorldLost             no repair in place; a relaunch resumes
    ├── StoppedEarly         75   stopped with a checkpoint, run again
    │   └── StopRequested         on a user's or scheduler's request
    ├── NotSaved             75   a running job did not make the requested checkpoint
    └── RunDirectoryBusy     76   another job owns the run directory
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.recovery.event import ExitCode

__all__ = [
    "ExitCode",
    "JobError",
    "NotSaved",
    "ProgramError",
    "RecoveryImpossible",
    "RunDirectoryBusy",
    "StopRequested",
    "StoppedEarly",
    "UsageError",
    "WorldLost",
]


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
    """A running job did not make the requested checkpoint; asking again may help."""

    exit_code = ExitCode.STOPPED_EARLY


class RunDirectoryBusy(JobError):
    """Another job owns the run directory."""

    exit_code = ExitCode.RUN_DIRECTORY_BUSY
