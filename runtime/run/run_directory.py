"""The run directory: all files that a job leaves on disk, their names, and whose they are.

::

    RUN_DIR/
      RUN.json        the terms of the run; of a run with a step only microbatches may change
      lease           locked or renewed by the job that owns the directory; names its owner
      journal.jsonl   every event, append only
      checkpoints/    see the checkpoint layer
      logs/           what workers have printed, a file for each, and one of all
      program/        texts of the script and its modules, as the newest job has begun with them
      script.jsonl    what the script has read and done outside of its trainings
      loaded/         copies of files that the script has loaded, and the run has written since
      report.html     a page for people, which no job reads; it needs no lease
      previous-1/     the run that ``--fresh`` has set aside

Invariant: a directory with a ``RUN.json`` holds one run, and every process that changes
anything in it holds the lease (`lease`).  A process that inherited its descriptor holds
it too.  So after the death of a client the directory stays owned as long as the agent
lives.  A crash needs no clean-up.

A lease keeps other jobs out while nothing happens to the directory.  A user may move or
remove it, or its lease, while the job lives, and start another job there.  A server may
have dropped the lock of a host that it took for dead.  Then two jobs would take each
other's checkpoints for their own, and remove the newest ones.

So `Ownership` reads the record of the run and that of the lease back each time, before anything is
renamed or removed.  The run's id tells another run.  The token, which each owner writes into the
lease when it takes it, tells another job of the same run.  A directory without a record is gone.
Then the job ends (`DirectoryLost`).  What cannot be read proves nothing, and nothing is changed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import json
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.checkpoint.errors import TRANSIENT, CommitRefused
from holdfast.checkpoint.names import STORE_NAME, step_of
from holdfast.runtime.errors import ExitCode, UsageError
from holdfast.runtime.run.files import (
    ForeignFile,
    is_there,
    move,
    open_to_write,
    read_at_most,
    refusal,
    sync,
    sync_names,
    write_whole,
)
from holdfast.runtime.run.lease import (
    LARGEST_LEASE_BYTES,
    Lease,
    LeaseFile,
    LeaseOwner,
)
from holdfast.runtime.system.codec import WrongValue, from_plain, to_plain
from holdfast.runtime.system.witnessed_time import Stillness

FORMAT = 1
"""Version of the run directory's layout and of ``RUN.json``."""

_PREVIOUS = re.compile(r"previous-\d+")
_LARGEST_RECORD_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RunRecord:
    """The terms of a run, as ``RUN.json`` holds them; a user may change microbatches at a resume.

    ``created`` is in seconds since 1970; ``threads`` are those of one worker;
    ``numerics`` are the settings of the launching host that the bits depend on.
    """

    run_id: str
    format: int
    created: float
    microbatches: int
    seed: int
    threads: int
    numerics: dict[str, object] = dataclasses.field(default_factory=dict)
    script_sha256: str | None = None
    """Of the script that has begun the run, None in a record of an older holdfast."""
    argv: list[str] | None = None
    """The arguments of that script, None in a record of an older holdfast."""
    modules: dict[str, str] | None = None
    """The digests of the modules that it imports, by their paths from its folder."""
    initial: str | None = None
    """Where the weights came from that it has begun with, None for none."""
    script: str | None = None
    """The path of that script, without links."""
    script_from_here: str | None = None
    """The same path from the run directory: it stays as it is if both are moved together."""
    array_task: str | None = None
    """The index of the task that has begun the run, None outside of a job array."""
    draw_seed: str | None = None
    """The seed of what the script draws without one, None in a record of an older holdfast."""

    def encode(self) -> bytes:
        """Return the record as the content of ``RUN.json``."""
        found = {name: value for name, value in to_plain(self).items() if value is not None}
        return json.dumps(found, indent=2).encode() + b"\n"

    @staticmethod
    def decode(content: bytes) -> RunRecord:
        """Return the record that ``encode`` wrote.

        Raises:
            ValueError: it is not such a record; the text gives the reason.
        """
        try:
            fields = json.loads(content)
        except RecursionError as error:
            raise ValueError("it holds a deep tree, not an object") from error
        if not isinstance(fields, dict):
            raise ValueError(f"it holds a {type(fields).__name__}, not an object")
        if fields.get("format") != FORMAT:
            raise ValueError(
                f"its format is {fields.get('format')!r}, this holdfast knows {FORMAT}"
            )
        if fields.get("key_id") is not None:
            raise ValueError(
                f"its key_id is {fields['key_id']!r}, and only an older holdfast, which has "
                "--key-file, reads the signed checkpoints of such a run"
            )
        try:
            record = from_plain(RunRecord, fields, allows_more=True)
        except WrongValue as error:
            raise ValueError(f"its {error.field} is {fields.get(error.field)!r}") from error
        for name in ("microbatches", "threads"):
            if fields[name] < 1:
                raise ValueError(f"its {name} is {fields[name]}, less than 1")
        return record


class _Name:
    """The path of a file or a folder of a run."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: RunDirectory, _: type[RunDirectory]) -> Path:
        return run.path / self._name


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """Names everything in a run directory, creates it, and gives its lease to one job."""

    path: Path
    record_path = _Name("RUN.json")
    lease_path = _Name("lease")
    journal_path = _Name("journal.jsonl")
    checkpoints_path = _Name(STORE_NAME)
    logs_path = _Name("logs")
    program_path = _Name("program")
    script_record_path = _Name("script.jsonl")
    loaded_path = _Name("loaded")
    page_path = _Name("report.html")

    @property
    def newest_step(self) -> int | None:
        """The newest step that was saved here; raises ``RunUnreadable`` if nobody can tell."""
        try:
            steps = map(step_of, os.listdir(self.checkpoints_path))
            return max((step for step in steps if step is not None), default=None)
        except OSError as error:
            if error.errno in TRANSIENT or isinstance(error, PermissionError):
                raise self._unusable(error) from error
            return None

    def command(self, name: str, *more: str) -> str:
        """Return a command on this run, for a sentence, as a shell takes it."""
        return f"`{shlex.join(['holdfast', name, str(self.path), *more])}`"

    def prepare(self) -> None:
        """Create the directory if needed, and check that it can be written to.

        Raises:
            UsageError: it cannot be used; the message names the path and the reason.
        """
        try:
            for level in reversed([self.path, *self.path.parents]):
                if not level.exists():
                    level.mkdir(exist_ok=True)
                    with contextlib.suppress(OSError):  # the first save tells of that
                        sync(level.parent)
            self.path.mkdir(exist_ok=True)
            # Only a write tells: access bits say nothing for root, on read-only file
            # systems, or about space.
            with tempfile.TemporaryFile(dir=self.path) as file:
                file.write(bytes(4096))
                file.flush()
            if self._closed is not None:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._closed)
        except OSError as error:
            raise self._unusable(error) from error

    def acquire_lease(self, *, takes_orders: bool = True, watch: Stillness | None = None) -> Lease:
        """Take the directory for this job; never waits.

        Only a process that is given the descriptor inherits it: a head that gets it
        keeps the lease when its client dies.

        Args:
            takes_orders: whether the owner saves and stops when it is asked to.
            watch: one for all attempts of a job, to see that an owner without a lock is dead.

        Raises:
            RunDirectoryBusy: another job has it; the message names its host and pid.
            UsageError: the lease file cannot be written or locked.
        """
        try:
            file = LeaseFile(self.lease_path, watch or Stillness())
            return file.take(takes_orders=takes_orders)
        except OSError as error:
            raise self._unusable(error) from error

    def lease_owner(self) -> LeaseOwner:
        """Return what the lease says of the job that owns the directory, or owned it last.

        Raises ``OSError`` if it cannot be read, and ``ValueError`` if it is too long.
        """
        return LeaseOwner.decode(read_at_most(self.lease_path, LARGEST_LEASE_BYTES))

    def lease_token(self) -> str:
        """Return the token of the job that owns the directory, or owned it last; "" without one.

        Raises ``OSError`` if the lease cannot be read, or is no file of this user.
        """
        try:
            return self.lease_owner().token
        except (FileNotFoundError, ValueError):  # it is being written just now
            return ""

    def create_record(self, record: RunRecord) -> None:
        """Write ``RUN.json``, whole and durable, and only if there is none yet.

        Raises:
            UsageError: there is one already, or it cannot be written.
        """
        if self._is_listed():
            raise UsageError(
                f"run directory {self.path} already holds a run; "
                "run without --fresh to resume it, or choose another --run-dir"
            )
        self.replace_record(record)

    def replace_record(self, record: RunRecord) -> None:
        """Write ``RUN.json`` anew, whole and durable: before a step, or for other microbatches.

        Raises:
            UsageError: it cannot be written.
        """
        try:
            write_whole(self.record_path, record.encode(), is_durable=True)
        except OSError as error:
            raise self._unusable(error) from error

    def _is_listed(self) -> bool:
        """Return whether the directory lists a record.

        A client of a server may remember for a minute that there is no such name.  It does not
        remember listings.
        """
        try:
            return self.path.is_dir() and self.record_path.name in os.listdir(self.path)
        except OSError as error:
            raise self._unusable(error) from error

    def load_record(self) -> RunRecord | None:
        """Return the record in ``RUN.json``, or None if no run was created yet.

        Raises:
            UsageError: the file exists but cannot be read or understood.
        """
        try:
            return RunRecord.decode(read_at_most(self.record_path, _LARGEST_RECORD_BYTES))
        except FileNotFoundError as error:
            if self._is_listed():
                reason = "it is listed, and yet not found"
                late = OSError(errno.ESTALE, reason, str(self.record_path))
                raise self._unusable(late) from error
            return None
        except OSError as error:
            raise self._unusable(error) from error
        except ValueError as error:
            raise UsageError(
                f"{self.record_path} is not a valid run record: {error}; "
                "restore it, or start over with --fresh (which sets the old run aside)"
            ) from error

    def set_aside(self) -> Path | None:
        """Move an existing run into a new folder ``previous-<n>``; return it, if any.

        The caller holds the lease.  ``RUN.json`` goes last.  So a move that is cut short
        leaves a run that can be set aside again, never checkpoints without their record.

        Raises:
            UsageError: the file system refuses.
        """
        others = [self.loaded_path, self.script_record_path, self.page_path, self.logs_path]
        mine = [*others, self.checkpoints_path, self.journal_path, self.record_path]
        try:
            present = [path for path in mine if is_there(path)]
            if not present:
                return None
            for number in itertools.count(1):
                folder = self.path / f"previous-{number}"
                with contextlib.suppress(FileExistsError):
                    folder.mkdir()
                    break
            for path in present:
                move(path, folder / path.name)
            sync_names(self.path)
        except OSError as error:
            raise self._unusable(error) from error
        return folder

    @property
    def previous_runs(self) -> int:
        """How many runs ``--fresh`` has set aside here."""
        with contextlib.suppress(OSError):
            return sum(_PREVIOUS.fullmatch(name) is not None for name in os.listdir(self.path))
        return 0

    def _unusable(self, error: OSError) -> UsageError:
        if isinstance(error, ForeignFile):
            return UsageError(str(error))
        if isinstance(error, (FileExistsError, NotADirectoryError)):
            return UsageError(f"{self.path} is no directory; choose another --run-dir")
        reason = error.strerror or str(error)
        text = f"run directory {self.path} cannot be used: {reason}; make it writable"
        closed = self._closed if isinstance(error, PermissionError) else None
        if closed is not None:
            text = (
                f"{closed} belongs to user {closed.stat().st_uid}, and others may not write it: "
                f"let its owner open the run, as to a group by `chmod -R g+rwX {self.path}`,"
            )
        return refusal(self.path, error, f"{text} or choose another --run-dir")

    @property
    def _closed(self) -> Path | None:
        """The first part of the run that another user has made, and that is closed to this one."""
        parts = (self.lease_path, self.journal_path, self.checkpoints_path, self.logs_path)
        for place in (self.path, *parts):
            with contextlib.suppress(OSError):
                found = place.stat()
                needed = os.R_OK | os.W_OK | (os.X_OK if stat.S_ISDIR(found.st_mode) else 0)
                if found.st_uid != os.geteuid() and not os.access(place, needed):
                    return place
        return None


_PROOFS: list[Callable[[], None]] = []


def prove_also(proof: Callable[[], None]) -> None:
    """Let ``proof`` belong to each proof of ownership of this process; it raises as that does."""
    _PROOFS.append(proof)


class DirectoryLost(CommitRefused):
    """A job's directory is gone, or another job's; ``exit_code`` is that of the job, which ends."""

    def __init__(self, exit_code: ExitCode, reason: str) -> None:
        super().__init__(reason)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class Ownership:
    """The claim of one job to one run directory; ``token`` is "" for a job without a lease."""

    run_dir: Path
    run_id: str
    token: str = ""

    def prove(self) -> None:
        """Return if the directory is still this job's.

        Raises ``DirectoryLost`` if it is not, and ``CommitRefused`` if that cannot be told just
        now, or if this process may change nothing for a reason of its own (`prove_also`).
        """
        try:
            taken, record = self._read()
        except (OSError, UsageError) as error:
            raise CommitRefused(
                f"it cannot be told just now whose {self.run_dir} is, so nothing is changed in "
                f"it: {error}"
            ) from error
        if taken:
            raise DirectoryLost(
                ExitCode.RUN_DIRECTORY_BUSY, f"{taken}; this job ends, and leaves it alone"
            )
        if record is None and self.token:  # without a lease it is nobody's to lose
            raise DirectoryLost(
                ExitCode.RECOVERY_IMPOSSIBLE,
                f"{self.run_dir} was removed or moved, or its RUN.json was: this job cannot save; "
                "if it was moved, `holdfast run --run-dir PLACE` goes on with it there",
            )
        for proof in _PROOFS:
            proof()

    def open_to_append(self, path: Path) -> int:
        """Open a file in the directory, or in a folder there, and make both if needed.

        Raises ``OSError`` if another job has the directory.
        """
        self.refuse_taken()
        if path.parent != self.run_dir:
            path.parent.mkdir(exist_ok=True)
        return open_to_write(path, os.O_APPEND)

    def refuse_taken(self) -> None:
        """Return unless another job has the directory, or if that cannot be told.

        Raises ``OSError`` if another one has it.
        """
        taken = ""
        with contextlib.suppress(OSError, UsageError):
            taken, _ = self._read()
        if taken:
            raise OSError(taken)

    def _read(self) -> tuple[str, RunRecord | None]:
        """Return who has taken the directory, "" if nobody has, and its record."""
        directory = RunDirectory(self.run_dir)
        record, token = directory.load_record(), directory.lease_token()
        if record is not None and record.run_id != self.run_id:
            its, this = record.run_id, self.run_id
            return f"{self.run_dir} belongs to run {its} now, not to {this}", record
        if self.token and token not in ("", self.token):
            return f"another job has taken the lease of {self.run_dir}", record
        return "", record
