"""A run that outlives its directory: its record and lease are made again after a removal.

Training goes on without a run directory, and the next checkpoint makes the directory
again.  Without ``RUN.json`` no job could resume from it.  Without the lease two jobs might
own it.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.errors import JobError, UsageError
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.ownership import Ownership
from holdfast.runtime.run.run_directory import RunDirectory, RunRecord


class RunKeeper:
    """Looks after record and lease of the job that owns a run directory."""

    def __init__(
        self,
        directory: RunDirectory,
        record: RunRecord,
        lease: Lease,
        tell: Callable[[str], None],
        hand_on: Callable[[Lease], None] = lambda _: None,
    ) -> None:
        self._directory = directory
        self._record = record
        self.lease = lease
        """The lease of the directory as it is now."""
        self._ownership = Ownership(directory.path, record.run_id, lease.token)
        self._tell = tell
        self._hand_on = hand_on
        self._failure = ""

    def look(self) -> bool:
        """Make a missing record or lease again, and report it; a failure is reported once.

        Returns whether the directory was made again, with another journal.
        """
        is_renewed = False
        try:
            is_renewed = self._renew()
        except JobError as error:
            self._tell_once(f"the run can no longer be resumed: {error}")
        except CommitRefused as error:
            self._tell_once(f"this job saves no more: {error}")
        except OSError as error:
            self._tell_once(f"{self._directory.path} does not answer ({error}): training goes on")
        if is_renewed:
            self._tell(
                f"{self._directory.path} was removed or moved, and is made again without the "
                "journal and the checkpoints that were in it: training goes on"
            )
        return is_renewed

    def _tell_once(self, failure: str) -> None:
        if failure != self._failure:
            self._failure = failure
            self._tell(failure)

    def _renew(self) -> bool:
        if self._directory.record_path.exists():
            self._ownership.prove()
            if not self._has_lease():
                self._take_lease()
            return False
        if not self._directory.path.parent.is_dir():  # perhaps its file system is gone
            raise UsageError(f"{self._directory.path} and its parent directory were removed")
        self._directory.prepare()
        if not self._has_lease():
            self._take_lease()
        self._directory.create_record(self._record)
        return True

    def _take_lease(self) -> None:
        """Take the lease again, whose file was removed; it keeps its token."""
        lost, token = self.lease, self._ownership.token
        self.lease = self._directory.acquire_lease(token=token)
        lost.release()
        self._hand_on(self.lease)

    def _has_lease(self) -> bool:
        """Return whether the held lease is the file that other processes would open."""
        try:
            return os.path.samestat(
                os.fstat(self.lease.fileno()), self._directory.lease_path.stat()
            )
        except FileNotFoundError:
            return False
