"""The writer's other half: the files of the run directory that are no checkpoints.

The head touches no disk.  It sends the lines of the journal here, ready as they are to be
written, and the lease and the record of the run.  It asks whether the directory is still its own.
A thread of its own serves, so that no line waits for a save.  A disk that hangs holds it up, and
nobody else.

Invariant: lines are written in the order in which they came, and each is counted to the head
once it is written.  The head keeps what is not counted, and sends it to the next writer.  A line
that the lost writer has written, but not counted, is found at the end of the journal, and is not
written again.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from holdfast.checkpoint.errors import CommitRefused
from holdfast.recovery.event import RunDirectoryLost
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.events import Warned
from holdfast.runtime.run.journal import TAIL_BYTES, JournalFile, JournalReader
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.progress import LaunchReport
from holdfast.runtime.run.run_directory import DirectoryLost, Ownership, RunDirectory, RunRecord
from holdfast.runtime.run.worker_logs import LogText, WorkerLogs
from holdfast.runtime.system.channel import FDS, Channel, MessageKinds, to_message
from holdfast.runtime.system.witnessed_time import Bound, has_ended

if TYPE_CHECKING:
    from holdfast.runtime.saving.metrics import MetricsShown


_AWAY_S = 10.0
"""A run directory may be away for so long: a file system that is mounted anew is."""
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class OpenRun:
    """Take a run: its directory, its record, and the lease that comes along."""

    run_dir: Path
    record: RunRecord
    metrics_file: Path | None


@dataclass(frozen=True, slots=True)
class JournalLines:
    """Lines for the journal, after so many that are lost; a lost writer may have written them."""

    lines: tuple[str, ...]
    lost: int = 0
    is_again: bool = False


@dataclass(frozen=True, slots=True)
class JobSeen:
    """What is seen of the workers by now, as ``holdfast status`` has it."""

    time: float
    seen: LaunchReport


@dataclass(frozen=True, slots=True)
class CheckDirectory:
    """Find out whether the directory is still the job's own."""


@dataclass(frozen=True, slots=True)
class JobOver:
    """The job is over: let the lease say so in the end."""


@dataclass(frozen=True, slots=True)
class Written:
    """So many lines, letters of a log, or messages of a kind are done with: more may be sent."""

    what: str
    size: int


ToRunFiles: TypeAlias = OpenRun | JournalLines | LogText | JobSeen | CheckDirectory | JobOver
OfRunFiles: TypeAlias = Written | Warned | RunDirectoryLost
_MESSAGES: MessageKinds[ToRunFiles] = MessageKinds(ToRunFiles)


class RunFiles:
    """Serves the head at the other end of ``channel`` in a thread, until that closes it."""

    def __init__(self, channel: Channel, away_s: float = _AWAY_S) -> None:
        self._channel = channel
        self._away_s = away_s
        self._journal: JournalFile | None = None
        self._lease: Lease | None = None
        self._metrics: MetricsShown | None = None
        self._is_over = self._is_lost = False
        self._thread = threading.Thread(target=self._serve, name="holdfast-files", daemon=True)
        self._thread.start()

    def close(self, within_s: float) -> None:
        """Wait for the end of the thread, but not for long; write down the end of the job."""
        has_ended(self._thread, Bound(within_s))
        if self._is_over and self._lease is not None:
            self._lease.end()

    def _serve(self) -> None:
        try:
            while (line := self._channel.receive()) is not None:
                message = _MESSAGES.decode(line)
                if size := self._take(message, line.get(FDS, ())):
                    self._send(Written(type(message).__name__, size))
            if self._journal is not None:
                self._journal.close()
                self._logs.close()
            if self._metrics is not None:
                with self._sparing():
                    self._metrics.close()
        except BaseException:  # another writer may do better; one without a journal is none
            traceback.print_exc()
            os._exit(1)

    def _take(self, message: ToRunFiles, fds: Sequence[int]) -> int:
        """Do what a message asks for; return how much of its kind the head may send again."""
        match message:
            case OpenRun():
                self._open(message, *fds)
                return 0
            case JobOver():
                self._is_over = True
                return 0
            case JournalLines(lines):
                self._write(message)
                return len(lines)
            case LogText(lines=text):
                self._logs.write(message)
                return len(text)
            case JobSeen(time, seen) if self._metrics is not None:
                with self._sparing():
                    self._metrics.look(time, seen)
            case CheckDirectory():
                self._tell_if_lost()
        return 1

    def _open(self, message: OpenRun, lease: int) -> None:
        record, directory = message.record, RunDirectory(message.run_dir)
        self._lease = Lease(lease)
        with contextlib.suppress(OSError):  # nothing to spare: the lease lasts for a minute
            self._lease.keep()
        self._owner = owner = Ownership(directory.path, record.run_id, self._lease.token)
        self._journal = JournalFile(directory.journal_path, owner, self._warn)
        self._journal.open_or_warn()
        self._path = directory.journal_path
        if message.metrics_file is not None:
            from holdfast.runtime.saving.metrics import MetricsShown  # Prometheus, for this alone

            self._metrics = MetricsShown(record.run_id, message.metrics_file, self._warn)
            self._metrics.go_on(self._path)
        self._logs = WorkerLogs(directory.logs_path, owner, self._warn)

    def _write(self, message: JournalLines) -> None:
        journal = self._journal
        assert journal is not None
        journal.lost += message.lost
        known = self._newest(message.lines) if message.is_again else frozenset()
        new = [line for line in message.lines if line not in known]
        journal.write(new)
        if self._metrics is not None:
            with self._sparing():
                self._metrics.saw(new)

    @contextlib.contextmanager
    def _sparing(self) -> Iterator[None]:
        """Give metrics up at an error of theirs: the journal and the saves go on without."""
        try:
            yield
        except Exception as error:
            self._metrics = None
            self._warn(f"metrics are given up: {type(error).__name__}: {error}")

    def _newest(self, lines: Sequence[str]) -> frozenset[str]:
        """Return the end of the journal, where these lines may be; nothing if it is unreadable."""
        nbytes = TAIL_BYTES + sum(len(line.encode()) + 1 for line in lines)
        with contextlib.suppress(OSError):
            tail = JournalReader(self._path, tail_bytes=nbytes).lines()
            return frozenset(line.decode(errors="replace").rstrip("\n") for line in tail)
        return frozenset()

    def _tell_if_lost(self) -> bool:
        """Tell that the directory is the job's no more, if so; what cannot be told is left open.

        One that is gone may be mounted anew just now, so it is waited for.
        """
        bound = Bound(self._away_s)
        while not self._is_lost:
            try:
                self._owner.prove()
            except DirectoryLost as lost:
                if lost.exit_code == ExitCode.RUN_DIRECTORY_BUSY or bound.has_passed:
                    self._is_lost = True
                    self._send(RunDirectoryLost(lost.exit_code, str(lost)))
                time.sleep(_LOOK_S)
                continue
            except CommitRefused:
                pass
            break
        return self._is_lost

    def _warn(self, text: str) -> None:
        """Show a sentence, unless the job ends for the same reason."""
        if not self._tell_if_lost():
            self._send(Warned(text))

    def _send(self, message: OfRunFiles) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(to_message(message))
