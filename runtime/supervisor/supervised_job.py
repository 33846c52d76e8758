"""A job in the hands of its supervisor: what it says, and its run to the end."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.supervisor.batch_job import BatchJob
from holdfast.runtime.supervisor.job_log import Narration
from holdfast.runtime.supervisor.job_setup import JobSetup
from holdfast.runtime.supervisor.progress_log import Paint, ProgressLog
from holdfast.runtime.supervisor.screen import Screen
from holdfast.runtime.supervisor.supervisor import Supervisor
from holdfast.runtime.supervisor.takeover import Takeover
from holdfast.runtime.system.signals import block


@dataclass(frozen=True, slots=True)
class SupervisedJob:
    """A job, its private directory in memory, and everything that it says."""

    setup: JobSetup
    base: Path
    screen: Screen
    progress: ProgressLog
    narration: Narration

    @staticmethod
    def of(setup: JobSetup, base: Path, paint: Paint | None) -> SupervisedJob:
        """Return a job that draws a live line if it has colours for it."""
        options = setup.options
        screen = Screen(may_draw=paint is not None)
        progress = ProgressLog(screen, paint, is_quiet=options.quiet)
        narration = Narration(
            setup.journal,
            is_verbose=options.verbose,
            write=screen.say,
            progress=progress,
            is_quiet=options.quiet,
        )
        return SupervisedJob(setup, base, screen, progress, narration)

    def run(self, agent: Takeover | subprocess.Popen[bytes] | None, batch: BatchJob) -> ExitCode:
        """Run the job to its end; no signal may end this process before everything is cleaned up.

        Args:
            agent: the one of a job to take over, or one that was begun for this job.
            batch: the batch job around it.
        """
        supervisor = Supervisor(self.setup, self.base, self.narration, agent, batch)
        try:
            return supervisor.run()
        finally:
            block()  # this process ends next, with the job's exit code and no other
            self.progress.end()
            supervisor.close()
            self._say_the_last()
            self.setup.journal.close()
            supervisor.signals.restore()

    def _say_the_last(self) -> None:
        """Say what is left to say, but not for long."""
        self.narration.lost_output()
        self.screen.close()
        self.narration.dropped(self.screen.dropped)
