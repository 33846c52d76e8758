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
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.journal import TAIL_BYTES, JournalFile, JournalReader
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import DirectoryLost, Ownership, RunDirectory, RunRecord
from holdfast.runtime.run.trace import TraceFiles
from holdfast.runtime.run.worker_logs import WorkerLogs
from holdfast.runtime.system.channel import FDS, Channel, Message
from holdfast.runtime.system.witnessed_time import Bound, has_ended

if TYPE_CHECKING:
    from holdfast.runtime.saving.metrics import MetricsShown


_AWAY_S = 10.0
"""A run directory may be away for so long: a file system that is mounted anew is."""
_LOOK_S = 0.2
_COUNTED = frozenset({"trace", "log", "look", "check"})
"""What the head sends so much of as is taken in time."""


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
        verbs: dict[str, Callable[[Message], object]] = {
            "open": self._open,
            "lines": self._write,
            "check": self._tell_if_lost,
            "trace": self._trace,
            "look": self._look,
            "log": self._log,
            "over": self._end,
        }
        try:
            while (message := self._channel.receive()) is not None:
                kind = message["kind"]
                verbs[kind](message)
                if kind in _COUNTED:  # once more may be sent
                    size = len(message["lines"]) if kind == "log" else 1
                    self._send({"kind": "taken", "what": kind, "size": size})
            if self._journal is not None:
                self._journal.close()
                self._traces.close()
                self._logs.close()
            if self._metrics is not None:
                with self._sparing():
                    self._metrics.close()
        except BaseException:  # another writer may do better; one without a journal is none
            traceback.print_exc()
            os._exit(1)

    def _open(self, message: Message) -> None:
        """Take the run: its directory, record and lease, the descriptor of which comes along."""
        record = RunRecord.decode(message["record"].encode())
        directory = RunDirectory(Path(message["run_dir"]))
        self._lease = Lease(message[FDS][0])
        with contextlib.suppress(OSError):  # nothing to spare: the lease lasts for a minute
            self._lease.keep()
        self._owner = owner = Ownership(directory.path, record.run_id, self._lease.token)
        self._journal = JournalFile(directory.journal_path, owner, self._warn)
        self._journal.open_or_warn()
        self._path = directory.journal_path
        self._traces = TraceFiles(directory.trace_path, owner, self._warn)
        if "metrics_file" in message:
            from holdfast.runtime.saving.metrics import MetricsShown  # Prometheus, for this alone

            file = Path(message["metrics_file"])
            self._metrics = MetricsShown(record.run_id, file, self._warn)
            self._metrics.go_on(self._path)
        self._logs = WorkerLogs(directory.logs_path, owner, self._warn)

    def _write(self, message: Message) -> None:
        journal, lines = self._journal, message["lines"]
        assert journal is not None
        journal.lost += message["lost"]
        known = self._newest(lines) if message["is_again"] else frozenset()
        new = [line for line in lines if line not in known]
        journal.write(new)
        if self._metrics is not None:
            with self._sparing():
                self._metrics.saw(new)
        self._send({"kind": "written", "count": len(lines)})

    @contextlib.contextmanager
    def _sparing(self) -> Iterator[None]:
        """Give metrics up at an error of theirs: the journal and the saves go on without."""
        try:
            yield
        except Exception as error:
            self._metrics = None
            self._warn(f"metrics are given up: {type(error).__name__}: {error}")

    def _trace(self, message: Message) -> None:
        self._traces.write(message["line"])

    def _look(self, message: Message) -> None:
        if self._metrics is not None:
            with self._sparing():
                self._metrics.look(message)

    def _log(self, message: Message) -> None:
        lines = message["lines"].encode("latin-1")
        self._logs.write(message["worker"], message["host"], lines, message["lost"])

    def _newest(self, lines: Sequence[str]) -> frozenset[str]:
        """Return the end of the journal, where these lines may be; nothing if it is unreadable."""
        nbytes = TAIL_BYTES + sum(len(line.encode()) + 1 for line in lines)
        with contextlib.suppress(OSError):
            tail = JournalReader(self._path, tail_bytes=nbytes).lines()
            return frozenset(line.decode(errors="replace").rstrip("\n") for line in tail)
        return frozenset()

    def _tell_if_lost(self, _: Message | None = None) -> bool:
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
                    self._send({"kind": "lost", "exit_code": lost.exit_code, "reason": str(lost)})
                time.sleep(_LOOK_S)
                continue
            except CommitRefused:
                pass
            break
        return self._is_lost

    def _end(self, _: Message) -> None:
        self._is_over = True

    def _warn(self, text: str) -> None:
        """Show a sentence, unless the job ends for the same reason."""
        if not self._tell_if_lost():
            self._send({"kind": "warning", "text": text})

    def _send(self, message: Message) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send(message)
