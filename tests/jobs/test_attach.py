"""A job that has lost its client goes on, and gets another one."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pytest
from workload import IMPATIENT, LONG, PreparedJob, Undisturbed, assert_whole, request_of

from holdfast.runtime.system.own_process import program_command
from holdfast.testing import JobRequest, JobRun, RunningJob, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(150)]


GATE = 60
"""After so many updates the workers wait: the next client is up before the end."""


@dataclass(frozen=True, kw_only=True)
class Attachment(JobRequest):
    """One ``holdfast attach`` that executes ``preparation`` first."""

    script: Path | str = ""
    preparation: str = ""

    def command(self) -> list[str]:
        """Return the command line."""
        main = f"{self.preparation}from holdfast.runtime.commands.main import main; main()"
        return [*program_command(main, "attach"), str(self.run_dir)]


def gated(folder: Path) -> JobRequest:
    """Return a job on 3 workers that waits in the middle of its way."""
    plain = request_of(LONG, folder / "run", workers=3)
    return replace(plain, argv=[*plain.argv, "--gates", str(folder), "--gate-steps", str(GATE)])


@pytest.fixture
def orphan(tmp_path: Path) -> Iterator[RunningJob]:
    """Such a job, whose client was killed."""
    with start_job(gated(tmp_path)) as job:
        job.wait_for("checkpoint")
        job.signal(signal.SIGKILL)
        yield job


def _attach(folder: Path, preparation: str = "") -> JobRun:
    """Attach to a job, and let it go on then."""
    with start_job(Attachment(run_dir=folder / "run", preparation=preparation)) as successor:
        successor.wait_for("taken_over")
        (folder / str(GATE)).touch()
        return successor.wait()


def test_attached_job_ends_with_the_same_bytes_and_exit_code(
    tmp_path: Path, undisturbed: Undisturbed, orphan: RunningJob
) -> None:
    attached = _attach(tmp_path)

    assert_whole(attached, LONG, undisturbed(LONG))
    assert "attached to the job in" in attached.stderr
    assert "completed step" in attached.stderr
    assert orphan.wait().leftovers == ()


def test_job_that_was_taken_over_stops_at_a_signal_with_a_checkpoint(
    tmp_path: Path, orphan: RunningJob
) -> None:
    with start_job(gated(tmp_path)) as successor:
        successor.wait_for("taken_over")
        os.kill(successor.pid, signal.SIGTERM)
        (tmp_path / str(GATE)).touch()
        job = successor.wait()

    assert job.exit_code == 75, job.stderr
    assert job.events("stopped")


def test_job_whose_head_is_stopped_and_has_no_client_is_ended_and_gone_on_with(
    tmp_path: Path, undisturbed: Undisturbed, orphan: RunningJob
) -> None:
    """Nobody else could end it: it would own the directory for ever."""
    orphan.signal(signal.SIGSTOP, "holdfast-agent")

    request = PreparedJob(**asdict(gated(tmp_path)), preparation=IMPATIENT)
    with start_job(request) as successor:
        while "and its head, pid" not in successor.stderr:
            assert successor.processes(), successor.stderr
            time.sleep(0.02)
        (tmp_path / str(GATE)).touch()
        job = successor.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert "and its head, pid" in job.stderr
    assert orphan.wait().leftovers == ()


@pytest.mark.extended
def test_job_is_attached_to_without_standard_streams(
    tmp_path: Path, undisturbed: Undisturbed, orphan: RunningJob
) -> None:
    """The connection to the agent must not get the number of a closed stdout.

    The first test attaches to a job with streams.
    """
    close_all = "import os\nfor fd in (0, 1, 2): os.close(fd)\n"

    attached = _attach(tmp_path, close_all)

    assert_whole(attached, LONG, undisturbed(LONG))
    assert attached.report.relaunches == ()
