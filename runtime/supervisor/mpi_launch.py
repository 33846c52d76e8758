"""One mpiexec and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from holdfast.runtime.supervisor.launch import LaunchLine
from holdfast.runtime.system.processes import kill_tree

_LOG = "mpiexec.log"
_WORDS_BYTES = 4096


class MpiLaunch:
    """A running MPI job, in a session of its own so that it survives its supervisor.

    All that mpiexec and Open MPI write goes to the launch's private directory,
    which ``clear`` removes.
    """

    def __init__(self, line: LaunchLine, environment: Mapping[str, str]) -> None:
        """Start mpiexec; its output goes to a log in the launch's directory."""
        self._directory = line.directory
        with (self._directory / _LOG).open("wb") as log:
            self._process = subprocess.Popen(
                line.command(),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.end_fd = os.pidfd_open(self._process.pid)

    @property
    def directory(self) -> Path:
        """The launch's private directory."""
        return self._directory

    @property
    def has_ended(self) -> bool:
        """Whether mpiexec is gone."""
        return self._process.poll() is not None

    def words(self) -> str:
        """Return the end of what mpiexec printed."""
        try:
            with (self._directory / _LOG).open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - _WORDS_BYTES))
                return log.read().decode(errors="replace").strip()
        except OSError:
            return ""

    def kill(self) -> None:
        """SIGKILL mpiexec and every process that it started."""
        if not self.has_ended:
            kill_tree(self._process.pid)

    def clear(self) -> None:
        """Wait for mpiexec and remove all that it left behind."""
        self._process.wait()
        with contextlib.suppress(OSError):
            os.close(self.end_fd)
        shutil.rmtree(self._directory, ignore_errors=True)
