"""One running mpiexec.

A batch system sends its signals to every process of a job.  mpiexec would end its ranks when
it gets one of them, although the job still has a checkpoint to write.  It installs handlers
of its own, so an ignored signal would not stay ignored.  A *blocked* one stays blocked:
children inherit the mask, and mpiexec and its libraries leave it alone (measured on PRRTE
3.0).  mpiexec unblocks all signals in the ranks that it starts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from holdfast.runtime.mpiexec import become_mpiexec
from holdfast.runtime.mpiexec.launch_line import LaunchLine
from holdfast.runtime.mpiexec.loopback import Pipes, serve_in_background
from holdfast.runtime.system.processes import UNKILLABLE_AFTER_S, kill_tree
from holdfast.runtime.system.signals import blocked

_SHIM = (sys.executable, "-I", "-S", str(become_mpiexec.__file__))
_LOG = "mpiexec.log"
_WORDS_BYTES = 4096


class MpiLaunch:
    """A running mpiexec, in a session of its own; it dies with this process.

    All files of mpiexec and Open MPI go to the launch's private directory, which ``clear``
    removes.
    """

    def __init__(self, line: LaunchLine, environment: Mapping[str, str]) -> None:
        """Start mpiexec; its output goes to a log in the launch's directory."""
        self._directory = line.directory
        (offers, ask), (hear, answers) = os.pipe(), os.pipe()
        with (self._directory / _LOG).open("wb") as log, blocked():
            self._process = subprocess.Popen(
                [*_SHIM, str(os.getpid()), str(ask), str(hear), *line.command()],
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(ask, hear),
            )
        os.close(ask)
        os.close(hear)
        self.end_fd = os.pidfd_open(self._process.pid)
        serve_in_background(self.end_fd, Pipes(offers, answers))

    @property
    def pid(self) -> int:
        """The process id of mpiexec."""
        return self._process.pid

    @property
    def directory(self) -> Path:
        """The launch's private directory."""
        return self._directory

    @property
    def has_ended(self) -> bool:
        """Whether mpiexec is gone."""
        return self._process.poll() is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of an mpiexec that is gone; under ULFM it means nothing."""
        return self._process.poll()

    def words(self) -> str:
        """Return the end of mpiexec's output."""
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
        """Wait for an mpiexec that ends, at most 10 s, and remove all files that it left behind."""
        self.end()
        shutil.rmtree(self._directory, ignore_errors=True)

    def end(self) -> None:
        """Wait for an mpiexec that ends, at most 10 s, and keep its files."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(UNKILLABLE_AFTER_S)
        with contextlib.suppress(OSError):
            os.close(self.end_fd)
