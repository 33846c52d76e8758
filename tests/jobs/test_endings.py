"""Exit code 0 means that the result is written: by the first worker, or by the next first one.

What a script leaves for its end is done as in Python: threads, executors, atexit, open files.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from extended import extended
from workload import run_job

from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

SCRIPT = Path(__file__).parent / "scripts" / "writing.py"


def _run(folder: Path, mistake: str) -> JobRun:
    request = JobRequest(
        script=SCRIPT,
        run_dir=folder / "run",
        workers=3,
        argv=[mistake, str(folder / "model")],
        options=["--threads", "1"],
    )
    return run_job(request)


def test_result_that_the_first_worker_died_over_is_written_by_the_next(tmp_path: Path) -> None:
    job = _run(tmp_path, "die")

    assert job.exit_code == 0, job.stderr
    assert (tmp_path / "model").read_text() == job.sha256
    assert len(job.report.relaunches) == 1
    assert job.leftovers == ()


def test_job_whose_first_worker_could_not_write_has_failed(tmp_path: Path) -> None:
    """The other workers have left in peace; they had nothing to write."""
    job = _run(tmp_path, "raise")

    assert job.exit_code == 1, job.stderr
    assert "OSError: no space left for the model" in job.stderr
    assert "Traceback" in job.stderr
    assert job.report.relaunches == ()
    assert job.leftovers == ()


def _run_apart(folder: Path, *argv: str) -> JobRun:
    """Run a script that trains as often on each of two workers, and has a gate then."""
    request = JobRequest(
        script=SCRIPT.with_name("apart.py"),
        run_dir=folder / "run",
        workers=2,
        microbatches=2,
        argv=[str(folder), *argv],
        options=["--threads", "1"],
    )
    return run_job(request)


def test_job_whose_first_worker_raises_between_trainings_has_failed(tmp_path: Path) -> None:
    """The others complete the next training without it, but nobody has done its part."""
    job = _run_apart(tmp_path, "2", "0:raise")

    assert job.exit_code == 1, job.stderr
    assert "error: OSError: no space left for the weights" in job.stderr
    assert "Traceback" in job.stderr
    assert job.report.completed_step == 4
    assert job.report.relaunches == ()
    assert job.leftovers == ()


def test_worker_that_is_slower_than_one_whose_script_has_ended_is_waited_for(
    tmp_path: Path,
) -> None:
    job = _run_apart(tmp_path, "1", "1:ended 0")

    assert job.exit_code == 0, job.stderr
    assert job.report.failures == ()
    assert job.leftovers == ()


def _ending(folder: Path, then: str) -> JobRequest:
    return JobRequest(
        script=SCRIPT.with_name("ending.py"),
        run_dir=folder / "run",
        workers=2,
        argv=[str(folder), then],
        options=["--threads", "1"],
    )


@pytest.mark.parametrize(("then", "code"), [("return", 0), extended("raise", 1)])
def test_work_that_a_script_leaves_for_its_end_is_done(
    tmp_path: Path, then: str, code: int
) -> None:
    job = run_job(_ending(tmp_path, then))

    assert job.exit_code == code, job.stderr
    files = {path.name for path in tmp_path.iterdir()} - {"run"}
    kinds = ("atexit", "executor", "open", "thread")
    assert files == {f"{kind} {rank}" for kind in kinds for rank in (0, 1)}
    assert [(tmp_path / f"open {rank}").read_text() for rank in (0, 1)] == ["written"] * 2
    assert job.report.failures == () if code == 0 else "error: " in job.stderr
    assert job.report.relaunches == ()
    assert job.leftovers == ()


def test_end_of_a_script_that_hangs_is_cut_by_an_order_to_stop(tmp_path: Path) -> None:
    with start_job(_ending(tmp_path, "hang")) as running:
        running.wait_for("completed", source="head")
        while len([*tmp_path.glob("polls *")]) < 2:
            time.sleep(0.01)
        running.signal(signal.SIGTERM)
        job = running.wait()

    assert job.exit_code == 75, job.stderr
    assert "whose end was saved at step 2" in job.stderr
    assert {path.name for path in tmp_path.glob("thread *")} == {"thread 0", "thread 1"}
    assert job.report.failures == ()
    assert job.leftovers == ()


def test_what_follows_a_job_in_its_process_can_be_interrupted(tmp_path: Path) -> None:
    script = tmp_path / "nothing.py"
    script.touch()
    program = (
        "import signal, sys\n"
        "from pathlib import Path\n"
        "from holdfast.runtime.options.job_options import JobOptions\n"
        "from holdfast.runtime.head.client import run_job\n"
        "watched = signal.SIGINT, signal.SIGTERM, signal.SIGUSR2\n"
        "before = [signal.getsignal(number) for number in watched]\n"
        "run_job(JobOptions(Path(sys.argv[1]), Path(sys.argv[2])))\n"
        "after = [signal.getsignal(number) for number in watched]\n"
        "sys.exit(before != after or signal.set_wakeup_fd(-1) != -1)\n"
    )

    line = [sys.executable, "-c", program, str(script), str(tmp_path / "run")]

    assert subprocess.run(line, check=False, capture_output=True).returncode == 0
