"""The proof that a run directory is still this job's, before anything in it is renamed or removed.

A lease keeps other jobs out while nothing happens to the directory.  A user may move or
remove it, or its lease, while the job lives, and start another job there.  A server may
have dropped the lock of a host that it took for dead.  Then two jobs would take each
other's checkpoints for their own, and remove the newest ones.

So the record of the run and that of the lease are read back each time.  The run's id tells
another run.  The token, which each owner writes into the lease when it takes it, tells
another job of the same run.  What is not there proves nothing: the supervisor of the job
makes it again.  What cannot be read is no proof either, and nothing is changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.run_directory import RunDirectory

_ADVICE = "stop one of the two jobs, and move its run directory elsewhere"


@dataclass(frozen=True, slots=True)
class Ownership:
    """The claim of one job to one run directory; ``token`` is "" for a job without a lease."""

    run_dir: Path
    run_id: str
    token: str = ""

    def prove(self) -> None:
        """Return if the directory is still this job's.

        Raises ``CommitRefused`` if it is another one's, or if that cannot be told just now.
        """
        directory = RunDirectory(self.run_dir)
        try:
            record = directory.load_record()
            token = directory.lease_token()
        except (OSError, UsageError) as error:
            raise CommitRefused(
                f"it cannot be told just now whose {self.run_dir} is, so nothing is changed in "
                f"it: {error}"
            ) from error
        if record is not None and record.run_id != self.run_id:
            raise CommitRefused(
                f"{self.run_dir} belongs to run {record.run_id} now, not to {self.run_id}; "
                f"{_ADVICE}"
            )
        if self.token and token not in ("", self.token):
            raise CommitRefused(
                f"another job has taken the lease of {self.run_dir}; {_ADVICE}, or let it go on"
            )
