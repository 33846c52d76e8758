from __future__ import annotations

import signal
from pathlib import Path

import pytest

from holdfast.runtime.system.processes import is_alive
from holdfast.testing import JobRequest, run_job, start_job

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "02_custom_replica.py"
SMALL = ("--samples", "40", "--global-batch", "10", "--epochs", "2")
ENDLESS = ("--samples", "40", "--global-batch", "10", "--epochs", "1000000")


def test_a_request_becomes_a_command_line() -> None:
    request = JobRequest(
        script="train.py",
        run_dir="runs/1",
        workers=3,
        microbatches=6,
        faults=["kill worker=1 step=3", "exit worker=0 step=4"],
        argv=["--epochs", "2"],
        options=["--spares", "1"],
    )

    command = request.command()

    assert command[command.index("run") :] == [
        *("run", "-n", "3", "--run-dir", "runs/1", "--microbatches", "6"),
        *("--inject", "kill worker=1 step=3", "--inject", "exit worker=0 step=4"),
        *("--spares", "1", "train.py", "--epochs", "2"),
    ]


@pytest.mark.mpi
def test_a_job_tells_what_became_of_it(tmp_path: Path) -> None:
    job = run_job(
        EXAMPLE,
        run_dir=tmp_path,
        workers=2,
        microbatches=2,
        faults=["kill worker=1 step=3"],
        argv=SMALL,
    )

    assert job.exit_code == 0, job.stderr
    assert "worker 1 died" in job.stderr
    assert "step 8 " in job.stdout
    assert [failure.worker for failure in job.report.failures] == [1]
    assert job.events("fault")[0]["step"] == 3
    assert job.sha256 == job.events("completed")[0]["sha256"]
    assert job.leftovers == ()


@pytest.mark.mpi
def test_a_job_works_in_the_directory_that_it_was_given(tmp_path: Path) -> None:
    request = JobRequest(script=EXAMPLE, run_dir="run", argv=SMALL, directory=tmp_path)

    with start_job(request) as running:
        job = running.wait()

    assert job.exit_code == 0, job.stderr
    assert job.sha256 is not None
    assert (tmp_path / "run" / "RUN.json").exists()


@pytest.mark.mpi
def test_a_job_that_takes_too_long_is_killed_with_everything_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = JobRequest(script=EXAMPLE, run_dir=tmp_path, workers=2, argv=ENDLESS)

    with start_job(request) as running:
        running.wait_for("launch")
        pids = list(running.processes())
        monkeypatch.setattr(running, "_deadline", 0.0)  # all of its time has passed
        with pytest.raises(TimeoutError, match="no such_event"):
            running.wait_for("such_event")
        with pytest.raises(TimeoutError, match="the job did not end in"):
            running.wait()

    assert len(pids) > 1
    assert not any(is_alive(pid) for pid in pids)
    assert list(Path("/dev/shm").glob(f"holdfast-{running.pid}-*")) == []


@pytest.mark.mpi
def test_waiting_for_what_a_job_never_did_ends_with_the_job(tmp_path: Path) -> None:
    request = JobRequest(script=EXAMPLE, run_dir=tmp_path, argv=SMALL)

    with (
        start_job(request, timeout_s=100.0) as running,
        pytest.raises(TimeoutError, match="alive: nothing"),
    ):
        running.wait_for("step", step=9)


@pytest.mark.mpi
def test_processes_of_a_job_have_names_and_can_be_signalled(tmp_path: Path) -> None:
    request = JobRequest(script=EXAMPLE, run_dir=tmp_path, workers=2, argv=ENDLESS)

    with start_job(request) as running:
        running.wait_for("step", step=2)
        running.signal(signal.SIGKILL, "holdfast-w1")
        failure = running.wait_for("failure")
        names = set(running.processes().values())
        with pytest.raises(ProcessLookupError, match="holdfast-w7"):
            running.signal(signal.SIGKILL, "holdfast-w7")

    assert failure["worker"] == 1
    assert {"holdfast-agent", "holdfast-pool", "holdfast-w0"} <= names


@pytest.mark.mpi
def test_a_process_that_a_job_leaves_behind_is_found_and_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.testing.ENDS_WITHIN_S", 2.0)  # it does not end
    script = tmp_path / "train.py"
    script.write_text(
        "import subprocess\nsubprocess.Popen(['sleep', '600'], start_new_session=True)\n"
    )
    request = JobRequest(script=script, run_dir=tmp_path / "run")

    with start_job(request) as running:
        job = running.wait()

    assert job.exit_code == 1, job.stderr  # it trained nothing
    (left,) = job.leftovers
    _, pid, name = left.split()
    assert name == "sleep"
    assert not is_alive(int(pid))
