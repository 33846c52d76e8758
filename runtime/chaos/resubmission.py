"""Whether a job is started again after it has ended, as a batch system or a patient user does."""

from __future__ import annotations

from holdfast.runtime.errors import ExitCode

OWNED_FOR_S = 120.0
"""So long another job may own the directory: twice what the agent needs to see a dead supervisor
on a busy machine."""
SUSPENDED_FOR_S = OWNED_FOR_S / 2
"""After so long a job whose supervisor and agent both stand is let go on, as its message says."""
MOST_IDLE_JOBS = 10
"""So many jobs in a row may end early without a new step."""

_AGAIN = (ExitCode.STOPPED_EARLY, ExitCode.INTERRUPTED, ExitCode.TERMINATED)


class Resubmission:
    """Decides on one run; pure."""

    def __init__(self) -> None:
        self._owned_since: float | None = None
        self._idle_jobs = 0
        self._step = -1

    def is_suspended(self, now: float) -> bool:
        """Return whether the owner of the directory seems to stand as a whole."""
        return self._owned_since is not None and now - self._owned_since > SUSPENDED_FOR_S

    def refusal(self, exit_code: int, step: int, now: float) -> str | None:
        """Return why the job is not started again, None if it is.

        ``exit_code`` is not 0, and negative for a signal; ``step`` is the run's highest so far;
        ``now`` is in monotonic seconds.
        """
        if exit_code == ExitCode.RUN_DIRECTORY_BUSY:
            if self._owned_since is None:
                self._owned_since = now
            owned_s = now - self._owned_since
            busy = f"another job has owned the run directory for {owned_s:.0f} s"
            return busy if owned_s > OWNED_FOR_S else None
        self._owned_since = None
        if exit_code > 0 and exit_code not in _AGAIN:
            return f"the job ended with exit code {exit_code}"
        self._idle_jobs = 0 if step > self._step else self._idle_jobs + 1
        self._step = max(step, self._step)
        if self._idle_jobs >= MOST_IDLE_JOBS:
            return f"{self._idle_jobs} jobs in a row ended early without a new step"
        return None
