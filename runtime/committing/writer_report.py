"""The report of the host's writer: the journal of the run that it writes for, and the agent."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from pathlib import Path

from holdfast.runtime.run.journal import Journal
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.channel import Channel

_TOLD_EVERY_S = 1.0
"""A read says no more than that the disk answers, and there are thousands of them."""


class WriterReport:
    """Writes into the journal of the run that it works for; shows sentences through the agent."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._run: tuple[Path, str] | None = None
        self._journal: Journal | None = None
        self._moving = threading.Lock()
        self._being_written = 0
        self._told = -math.inf

    def begin(self, run_dir: Path, run_id: str) -> None:
        """Write into the journal of this run from now on."""
        if (run_dir, run_id) == self._run:
            return
        self.close()
        self._run = run_dir, run_id
        path = RunDirectory(run_dir).journal_path
        self._journal = Journal(path, run_id=run_id, source="snapshot writer", is_required=False)

    def record(self, event: str, /, **fields: object) -> None:
        """Write an event into the journal."""
        if self._journal is not None:
            self._journal.record(event, **fields)

    def notify(self, text: str) -> None:
        """Let the agent show one line to the user."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._channel.send({"kind": "notice", "text": text})

    def disk_moved(self, change: int) -> None:
        """Let the agent wait on: the disk does not hang, and so many bytes are being written."""
        with self._moving:
            self._being_written += change
            now = time.monotonic()
            if not change and now - self._told < _TOLD_EVERY_S:
                return
            self._told = now
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self._channel.send({"kind": "progress", "bytes": self._being_written})

    def close(self) -> None:
        """Write what waits, and close the journal."""
        if self._journal is not None:
            self._journal.close()
