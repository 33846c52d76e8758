"""A run that outlives its directory: its record and lease are made again after a removal.

Training goes on without a run directory, and the next checkpoint makes the directory
again.  Without ``RUN.json`` no job could resume from it.  Without the lease two jobs might
own it.  A journal is made again by the process that writes next.  Such a journal lacks the
begin of the job, which the head writes down once more.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.errors import JobError, UsageError
from holdfast.runtime.run.files import open_to_read
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import Ownership, RunDirectory, RunRecord

_LONGEST_HEAD_BYTES = 1 << 12
_BEGUN_AGAIN = b'"journal_removed"'


@dataclass(frozen=True, slots=True)
class _Lost:
    """What of a run directory was removed."""

    has_record: bool = False
    has_lease: bool = False
    has_journal: bool = False

    @property
    def words(self) -> str:
        """What to say of it, with a place for the directory; a lease alone is not worth a word."""
        if self.has_record and self.has_lease and self.has_journal:
            return (
                "{} was removed or moved, and is made again without the journal and the "
                "checkpoints that were in it"
            )
        return _WORDS[self.has_record, self.has_journal]


_WORDS = {
    (False, False): "",
    (True, False): "RUN.json was removed from {}, and is made again",
    (False, True): "journal.jsonl was removed from {}, and is begun again without what it held",
    (True, True): (
        "RUN.json and journal.jsonl were removed from {}, and are made again without what the "
        "journal held"
    ),
}
"""By whether the record and the journal were removed."""


class _JournalHead:
    """The first line of a journal, which tells it from one that was begun again.

    A name tells nothing, as any process of the job begins it again.  Nor does the number of a
    file, which is given to the next one.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: bytes | None = None
        self.remember()

    def is_kept(self) -> bool | None:
        """Return whether the journal is the one that was there; None if none was."""
        before, found = self._known, self._read()
        if before is None:
            is_kept = None if found is None else True
        elif found is None:
            is_kept = False
        elif not before:  # it was empty: the first line of a journal that was removed says so
            is_kept = _BEGUN_AGAIN not in found
        else:
            return found.startswith(before)
        if is_kept:
            self._known = found
        return is_kept

    def remember(self) -> None:
        """Take the journal that is there now for the known one; None if it is still to come."""
        self._known = self._read()

    def _read(self) -> bytes | None:
        """Return the first line, the known one if it cannot be read just now; None if it is gone.

        Raises no error of the file: that is its writers' matter.
        """
        try:
            with open_to_read(self._path) as file:
                return file.readline(_LONGEST_HEAD_BYTES).rstrip(b"\n")
        except FileNotFoundError:
            return None
        except OSError:
            return self._known


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
        self._journal = _JournalHead(directory.journal_path)

    def poll(self) -> bool:
        """Make a missing record or lease again, and report it; a failure is reported once.

        Returns whether the journal was begun again, and does not know of the job.
        """
        lost = _Lost()
        try:
            lost = self._renew()
        except JobError as error:
            self._tell_once(f"the run can no longer be resumed: {error}")
        except CommitRefused as error:
            self._tell_once(f"this job saves no more: {error}")
        except OSError as error:
            self._tell_once(f"{self._directory.path} does not answer ({error}): training goes on")
        if lost.words:
            self._tell(f"{lost.words.format(self._directory.path)}: training goes on")
        return lost.has_journal

    def _tell_once(self, failure: str) -> None:
        if failure != self._failure:
            self._failure = failure
            self._tell(failure)

    def _renew(self) -> _Lost:
        """Make again what is missing; return that."""
        is_kept = self._journal.is_kept()
        has_record = self._directory.record_path.exists()
        if has_record:
            self._ownership.prove()
        elif not self._directory.path.parent.is_dir():  # perhaps its file system is gone
            raise UsageError(f"{self._directory.path} and its parent directory were removed")
        else:
            self._directory.prepare()
        has_lease = self._has_lease()
        if not has_lease:
            self._take_lease()
        if not has_record:
            self._directory.create_record(self._record)
        if not is_kept:  # one that was kept, and has gone since, is missed at the next look
            self._journal.remember()
        is_begun_again = not (has_record or has_lease) if is_kept is None else not is_kept
        return _Lost(not has_record, not has_lease, is_begun_again)

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
