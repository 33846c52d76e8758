"""Signals to the processes of a job: the user's, the scheduler's, and those that kill."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from extended import extended, shortened
from workload import EVEN, LONG, Undisturbed, Workload, assert_whole, request_of, run_job

from holdfast.runtime.system.own_process import program_command
from holdfast.runtime.system.processes import wait_all_ended
from holdfast.testing import JobRun, RunningJob, start_job

pytestmark = pytest.mark.mpi


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningJob]:
    """A job on 3 workers that has a checkpoint and most of its way before it."""
    with start_job(request_of(LONG, tmp_path / "run", workers=3)) as job:
        job.wait_for("checkpoint")
        yield job


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, JobRun]:
    """The directory of a run that SIGTERM has stopped, and the job that was stopped."""
    run_dir = tmp_path_factory.mktemp("stopped")
    with start_job(request_of(LONG, run_dir, workers=4)) as job:
        job.wait_for("step", step=5)
        job.signal(signal.SIGTERM)
        return run_dir, job.wait()


def test_sigterm_stops_with_a_checkpoint(stopped: tuple[Path, JobRun]) -> None:
    _, job = stopped

    assert job.exit_code == 75, job.stderr
    assert job.report.checkpoints[-1].step == job.events("stopped")[0]["step"] < LONG.steps
    assert job.leftovers == ()


@pytest.mark.parametrize("workers", shortened([1, 3, 8], here=[3]))
def test_a_stopped_run_resumes_on_any_number_of_workers(
    tmp_path: Path, undisturbed: Undisturbed, stopped: tuple[Path, JobRun], workers: int
) -> None:
    run_dir = shutil.copytree(stopped[0], tmp_path / "run")

    paced = request_of(LONG, run_dir, workers=workers)
    resumed = run_job(replace(paced, argv=[*paced.argv, "--pause-ms", "0"]))

    assert_whole(resumed, LONG, undisturbed(LONG))
    assert resumed.events("restored")[0]["step"] == stopped[1].report.checkpoints[-1].step


@pytest.mark.parametrize("parts", [12, extended(1)])
def test_other_microbatches_at_a_resume_are_those_of_a_run_that_changes_there(
    tmp_path: Path, undisturbed: Undisturbed, stopped: tuple[Path, JobRun], parts: int
) -> None:
    changed = replace(LONG, microbatches=parts)
    step = stopped[1].report.checkpoints[-1].step
    jobs = []
    for workers, faults in ((1, ()), (4, (f"kill worker=0 step={step + 3}",))):
        run_dir = shutil.copytree(stopped[0], tmp_path / f"run-{workers}")
        paced = request_of(changed, run_dir, workers=workers, faults=faults)
        with start_job(replace(paced, argv=[*paced.argv, "--pause-ms", "0"])) as job:
            jobs.append(job.wait())

    told = f"the run had --microbatches 7 up to step {step}, and has {parts} from there on"
    assert [job.exit_code for job in jobs] == [0, 0], jobs[1].stderr
    assert all(told in job.stderr for job in jobs)
    assert [record["text"] for record in jobs[0].events("warning")][-1].startswith(told)
    assert jobs[0].sha256 == jobs[1].sha256 != undisturbed(LONG)
    assert len(jobs[1].report.failures) == 1


@pytest.mark.extended  # a signal to one process runs here
@pytest.mark.parametrize("gap_s", [0.0, extended(0.05)])
def test_one_signal_to_all_processes_is_one_wish(tmp_path: Path, gap_s: float) -> None:
    """A scheduler signals a cgroup, and the head may hear of it before its client."""
    with start_job(request_of(LONG, tmp_path / "run", workers=3)) as job:
        job.wait_for("step", step=5)
        job.signal(signal.SIGTERM, "holdfast-agent")
        time.sleep(gap_s)
        for pid in job.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        stopped = job.wait()

    assert stopped.exit_code == 75, stopped.stderr
    assert stopped.report.checkpoints[-1].step == stopped.events("stopped")[0]["step"]
    assert stopped.report.failures == ()


@pytest.mark.parametrize(
    ("flags", "exit_code"), [((), 75), pytest.param(("--now",), 143, marks=pytest.mark.extended)]
)
def test_job_is_stopped_from_another_terminal(
    tmp_path: Path, running: RunningJob, flags: tuple[str, ...], exit_code: int
) -> None:
    main = "from holdfast.runtime.commands.main import main; main()"
    words = [*program_command(main, "stop"), *flags, str(tmp_path / "run")]

    asked = subprocess.run(words, capture_output=True, text=True, check=False)

    job = running.wait()
    assert (asked.returncode, asked.stdout) == (0, f"stopped: its exit code is {exit_code}\n")
    assert job.exit_code == exit_code, job.stderr
    assert "holdfast stop" in job.stderr
    assert job.leftovers == ()


def test_stop_that_takes_longer_than_its_grace_is_cut_short(tmp_path: Path) -> None:
    slow = replace(LONG, pause_ms=20_000)
    options = ["--grace", "1", "--heartbeat-timeout", "60"]
    with start_job(request_of(slow, tmp_path / "run", workers=2, options=options)) as job:
        job.wait_for("world")
        job.signal(signal.SIGTERM)
        stopped = job.wait()

    assert stopped.exit_code == 143, stopped.stderr
    assert "its workers have not stopped with a checkpoint" in stopped.stderr
    assert stopped.leftovers == ()


def test_sigusr2_saves_and_goes_on(tmp_path: Path) -> None:
    unsaved = Workload(
        microbatches=2, samples=160, global_batch=40, epochs=100_000, save_every=10**9
    )
    with start_job(request_of(unsaved, tmp_path, workers=2)) as job:
        job.wait_for("step", step=5)
        job.signal(signal.SIGUSR2)

        saved = job.wait_for("checkpoint")
        job.wait_for("step", step=saved["step"] + 1)

    assert saved["step"] < unsaved.steps


def test_sigint_twice_ends_at_once(running: RunningJob) -> None:
    running.signal(signal.SIGINT)
    running.signal(signal.SIGINT)

    job = running.wait()

    # the first may have stopped the job before the second came
    assert job.exit_code in (130, 75), job.stderr
    assert job.leftovers == ()


def test_the_end_of_the_client_stops_nothing(running: RunningJob, undisturbed: Undisturbed) -> None:
    running.signal(signal.SIGKILL)

    job = running.wait()

    assert job.exit_code == -signal.SIGKILL
    assert job.sha256 == undisturbed(LONG)
    assert all(epoch.exact for epoch in job.report.epochs)
    assert job.leftovers == ()


def test_a_client_that_dies_before_its_head_lives_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    with start_job(request_of(EVEN, tmp_path, workers=2)) as job:
        job.wait_for("job_started")
        # Killed even earlier, it leaves its directory to the next job (test_surroundings.py).
        while not (started := [pid for pid in job.processes() if pid != job.pid]):
            pass
        job.signal(signal.SIGKILL)
        assert wait_all_ended(started, 90) == ()

        ended = job.wait()

    assert ended.leftovers == ()


def test_workers_that_die_without_a_client_are_relaunched(
    running: RunningJob, undisturbed: Undisturbed
) -> None:
    """Twice: the machine is in the head, and needs nobody who looks on."""
    running.signal(signal.SIGKILL)
    for first in (0, 3):
        for number in (signal.SIGSTOP, signal.SIGKILL):  # or survivors would repair in between
            for worker in range(first, first + 3):
                running.signal(number, f"holdfast-w{worker}")
        running.wait_for("world", workers=list(range(first + 3, first + 6)))

    job = running.wait()

    assert job.sha256 == undisturbed(LONG)
    assert [relaunch["workers"] for relaunch in job.events("relaunch")] == [[3, 4, 5], [6, 7, 8]]
    assert job.leftovers == ()
