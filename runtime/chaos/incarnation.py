"""One ``holdfast run`` of a run, as a child in a session of its own."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from holdfast.runtime.batch.finding import CHAIN
from holdfast.runtime.chaos.job_traces import JobTraces
from holdfast.runtime.chaos.stderr_pipe import StderrPipe
from holdfast.runtime.mpiexec.launch_line import outside_of_batch
from holdfast.runtime.run.run_directory import CHAOS_DRAWS, RunRecord
from holdfast.runtime.system.helper_process import program_command

_MAIN = "from holdfast.runtime.cli.main import main; main()"


def run_command(run_dir: Path, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command line of ``holdfast run`` with these arguments in ``run_dir``."""
    return program_command(_MAIN, "run", "--run-dir", str(run_dir), *arguments)


def _surroundings() -> dict[str, str]:
    """Return an environment in which a run goes on, and no batch job is requeued for it."""
    environment = outside_of_batch(os.environ)
    environment.pop(CHAIN, None)
    # It counts more than a holdfast.toml.
    return environment | {"HOLDFAST_FRESH": "no", CHAOS_DRAWS: _draw_seed()}


@functools.cache
def _draw_seed() -> str:
    """Return what a run and its twin draw from, where their script gives no seed."""
    return RunRecord.new_draw_seed()


class Incarnation:
    """The supervisor of a run, from its start to its end."""

    def __init__(self, command: Sequence[str], traces: JobTraces, folder: Path) -> None:
        """Start it; its output is appended to ``stdout.txt`` and ``stderr.txt`` in ``folder``."""
        self.stderr = StderrPipe(folder / "stderr.txt")
        with (folder / "stdout.txt").open("ab") as out:
            self._process = subprocess.Popen(
                command,
                env=traces.environment(_surroundings()),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=self.stderr.write_fd,
                start_new_session=True,
            )
        self.stderr.started()
        self.is_standing = False

    @property
    def pid(self) -> int:
        """The process id of the supervisor."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for a signal, None while it lives."""
        return self._process.poll()

    def go_on(self) -> None:
        """Wake it up, if it was stopped."""
        self._process.send_signal(signal.SIGCONT)

    def reap(self) -> None:
        """Wait for its end."""
        self._process.wait()
