"""``--no-shrink``: each death is a warm relaunch, with any MPI.

The last tests need other MPIs.  ``ci/other-mpis DIR`` installs their wheels, and
``HOLDFAST_OTHER_MPIS=DIR`` names them here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from extended import shortened
from workload import EVEN, LONG, Undisturbed, assert_whole, listeners_of, request_of, run_job

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.saving.writer_link import KILLED_SETTLES_WITHIN_S
from holdfast.testing import JobRun, RunningJob, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(90)]

OTHERS = sorted(Path(os.environ.get("HOLDFAST_OTHER_MPIS", "/nonexistent")).glob("*/bin/mpiexec"))
HYDRAS = [path for path in OTHERS if path.with_name("mpiexec.hydra").exists()]
other_mpi, hydra = (
    pytest.mark.parametrize(
        "mpiexec",
        found or [pytest.param(None, marks=pytest.mark.skip("HOLDFAST_OTHER_MPIS names none"))],
        ids=lambda path: path.parts[-3] if path else "none",
    )
    for found in (OTHERS, HYDRAS)
)


def _train(run_dir: Path, faults: list[str], *options: str, workers: int = 3) -> JobRun:
    request = request_of(
        EVEN, run_dir, workers=workers, faults=faults, options=["--no-shrink", *options]
    )
    return run_job(request)


def _restored(job: JobRun) -> list[int]:
    return [record["step"] for record in job.journal if record["event"] == "restored"]


@pytest.mark.parametrize("kind", shortened(["kill", "exit", "segfault", "raise"], here=["kill"]))
def test_death_of_each_kind_is_a_relaunch_of_all(
    tmp_path: Path, undisturbed: Undisturbed, kind: str
) -> None:
    job = _train(tmp_path, [f"{kind} worker=1 step=9 site=compute"])

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert len(job.report.relaunches) == 1
    assert job.report.recoveries == ()
    launches = [record["workers"] for record in job.journal if record["event"] == "launch"]
    assert launches == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("site", shortened(["reduce", "vote", "apply"], here=["reduce"]))
def test_save_that_is_complete_in_memory_is_what_the_relaunch_begins_with(
    tmp_path: Path, undisturbed: Undisturbed, site: str
) -> None:
    """One dies in the step after a save, the others are killed: none was left to commit it."""
    job = _train(tmp_path, [f"kill worker=1 step=6 site={site}"], workers=4)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert _restored(job) == [5]


@pytest.mark.extended
def test_save_of_a_dead_job_is_waited_for_though_its_disk_is_slow(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """No user waits for the end of the launch, so its writer has more than some seconds.

    Above, such a save is what the relaunch begins with.
    """
    request = request_of(LONG, tmp_path, workers=2, options=["--no-shrink"])
    with start_job(request) as running:
        running.wait_for("checkpoint")
        running.signal(signal.SIGSTOP, "holdfast-writer")
        on_disk = CheckpointStore(tmp_path).steps()[0]
        running.wait_for("step", step=on_disk + 3 * LONG.save_every)
        running.signal(signal.SIGKILL, "holdfast-w1")
        _wait_until_alone(running, "holdfast-w0")
        time.sleep(KILLED_SETTLES_WITHIN_S + 2)  # what a user would wait is what this tests
        with contextlib.suppress(ProcessLookupError):  # if its agent has given it up
            running.signal(signal.SIGCONT, "holdfast-writer")
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert len(job.report.relaunches) == 1
    assert {step > on_disk for step in _restored(job)} == {True}


def _wait_until_alone(running: RunningJob, worker: str) -> None:
    """Wait for the death of the last worker: the agent has killed it."""
    while worker in running.processes().values():
        time.sleep(0.01)


@other_mpi
def test_any_mpi_trains_to_the_same_bytes_over_deaths(
    tmp_path: Path, undisturbed: Undisturbed, mpiexec: Path
) -> None:
    faults = ["kill worker=1 step=6 site=reduce", "exit worker=3 step=11 site=vote"]

    job = _train(tmp_path, faults, "--mpiexec", str(mpiexec))

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert len(job.report.relaunches) == 2
    assert _restored(job)[0] == 5
    assert job.leftovers == ()


@hydra
def test_launcher_without_ulfm_is_refused_in_place(tmp_path: Path, mpiexec: Path) -> None:
    job = run_job(request_of(EVEN, tmp_path, workers=2, options=["--mpiexec", str(mpiexec)]))

    assert job.exit_code == 2
    assert "--no-shrink" in job.stderr


@hydra
def test_no_segment_of_shared_memory_is_left_behind(
    tmp_path: Path, undisturbed: Undisturbed, mpiexec: Path
) -> None:
    """MPICH removes its own at the end of a rank, and a rank that is killed has none."""
    before = {*Path("/dev/shm").glob("*mpi*"), *Path("/dev/shm").glob("*MPI*")}

    job = _train(tmp_path, ["kill worker=0 step=7"], "--mpiexec", str(mpiexec))

    assert_whole(job, EVEN, undisturbed(EVEN))
    after = {*Path("/dev/shm").glob("*mpi*"), *Path("/dev/shm").glob("*MPI*")}
    assert after - before == set()


@hydra
def test_workers_listen_nowhere(tmp_path: Path, undisturbed: Undisturbed, mpiexec: Path) -> None:
    options = ["--no-shrink", "--mpiexec", str(mpiexec)]
    with start_job(request_of(LONG, tmp_path, workers=3, options=options)) as running:
        running.wait_for("step", step=20)
        names, listening = listeners_of(running)
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert {"holdfast-agent", "holdfast-w0", "holdfast-w1"} <= names
    assert not {name for name, _ in listening if name.startswith("holdfast")}
