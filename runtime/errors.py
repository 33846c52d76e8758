"""Errors of a job, and the exit codes that they end with.

::

    JobError
    ├── UsageError            2   the request makes no sense as it stands
    │   └── RunUnreadable    75   a file of the run could not be read or written just now
    ├── ProgramError          1   the user's program is at fault
    ├── RecoveryImpossible   70   budget spent, or nothing valid to restore
    ├── CheckpointsUnread    75   no checkpoint could be read, and some may be whole
    ├── NotSaved             75   a running job did not make the requested checkpoint
    └── RunDirectoryBusy     76   another job owns the run directory

    Ending                        no mistake: the script ends here
    ├── NoMoreTraining        1   a training has failed, and the script begins another
    ├── WorldLost            70   no repair in place; a relaunch resumes
    └── StoppedEarly         75   stopped with a checkpoint, run again
        └── StopRequested         on a user's or scheduler's request
"""

from __future__ import annotations

from typing import ClassVar

from holdfast.recovery.errors import ExitCode as ExitCode  # noqa: PLC0414  (errors have it)


class JobError(Exception):
    """A job cannot go on, for a reason that one sentence explains."""

    exit_code: ClassVar[ExitCode] = ExitCode.PROGRAM_FAILED

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows of it: IPython asks an exception for this."""
        return [f"holdfast: error: {self}"]


class UsageError(JobError):
    """The request makes no sense as it stands; change it and run again."""

    exit_code = ExitCode.USAGE


class ProgramError(JobError):
    """The user's program is at fault."""

    exit_code = ExitCode.PROGRAM_FAILED


class RecoveryImpossible(JobError):
    """The restart budget is spent, or nothing valid is left to restore."""

    exit_code = ExitCode.RECOVERY_IMPOSSIBLE


class RunUnreadable(UsageError):
    """A file of the run could not be read or written just now; running again may help.

    A caller that can do without the file treats it like one that makes no sense.
    """

    exit_code = ExitCode.STOPPED_EARLY


class CheckpointsUnread(JobError):
    """No checkpoint could be read, and some of them may be whole; running again may help."""

    exit_code = ExitCode.STOPPED_EARLY


class NotSaved(JobError):
    """A running job did not make the requested checkpoint; asking again may help."""

    exit_code = ExitCode.STOPPED_EARLY


class RunDirectoryBusy(JobError):
    """Another job owns the run directory."""

    exit_code = ExitCode.RUN_DIRECTORY_BUSY


class Ending(BaseException):
    """Ends a script that has made no mistake, in the middle of its training.

    It derives from ``BaseException``, as ``SystemExit`` does: a script that catches every
    ``Exception`` of its ``fit`` must not take it for a training that went wrong.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.PROGRAM_FAILED


class NoMoreTraining(Ending):
    """The script begins another training after one that has not come to its end."""


class WorldLost(Ending):
    """The world cannot be repaired in place; a relaunch goes on from the newest checkpoint."""

    exit_code = ExitCode.RECOVERY_IMPOSSIBLE


class StoppedEarly(Ending):
    """The job stopped with a checkpoint; running it again resumes it."""

    exit_code = ExitCode.STOPPED_EARLY


class StopRequested(StoppedEarly):
    """The job was asked to stop, and did so at a step that all workers agreed on."""


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of a job that ``error`` has ended."""
    if isinstance(error, (JobError, Ending)):
        return error.exit_code
    return ExitCode.PROGRAM_FAILED
