"""What a job shows of itself to its host, and what of the host it shows to the script."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from cluster import wait_until
from commands import holdfast_code
from extended import extended
from workload import EVEN, LONG, PreparedJob, Undisturbed, assert_whole, listeners_of, request_of

from holdfast.runtime.system.processes import wait_all_ended
from holdfast.testing import JobRequest, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(90)]

LAUNCHER = "prterun"
"""The name of mpiexec's process."""


@pytest.mark.parametrize(
    "options", [pytest.param([], id="in place"), extended(["--no-shrink"], id="no shrink")]
)
def test_mpiexec_alone_listens_and_not_for_workers_when_all_are_connected(
    tmp_path: Path, undisturbed: Undisturbed, options: list[str]
) -> None:
    with start_job(request_of(LONG, tmp_path, workers=3, options=options)) as running:
        running.wait_for("step", step=20)
        names, listening = listeners_of(running)
        wait_until(
            lambda: not any(at.startswith("127.") for _, at in listeners_of(running)[1]),
            "end of listening for workers",
        )
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert names >= {"holdfast-agent", "holdfast-w0", "holdfast-w1", "holdfast-w2", LAUNCHER}
    assert {name for name, _ in listening} == {LAUNCHER}


def test_modules_in_the_working_directory_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, undisturbed: Undisturbed
) -> None:
    """Nor by the trial of the MPI, whose earlier outcome is not remembered here."""
    planted = tmp_path / "planted"
    planted.mkdir()
    for name in ("h5py", "mpi4py", "numpy", "psutil", "queue", "select", "selectors", "xxhash"):
        (planted / f"{name}.py").write_text("raise SystemExit('a file of somebody else ran')\n")
    monkeypatch.chdir(planted)
    request = request_of(
        EVEN,
        tmp_path / "run",
        workers=2,
        faults=["kill worker=1 step=3"],
        environment={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )

    with start_job(request) as running:
        job = running.wait()

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert [*planted.iterdir()] == [*planted.glob("*.py")]
    assert [*(tmp_path / "cache").rglob("mpi-*.json")] != []


def test_script_imports_from_its_own_directory_and_from_pythonpath(tmp_path: Path) -> None:
    for folder, name in (("scripts", "beside"), ("elsewhere", "named")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.py").write_text(f"WORD = {name!r}\n")
    script = tmp_path / "scripts" / "train.py"
    script.write_text("import beside, named\nprint(beside.WORD, named.WORD)\n")
    request = JobRequest(
        script=script,
        run_dir=tmp_path / "run",
        environment={"PYTHONPATH": str(tmp_path / "elsewhere")},
    )

    with start_job(request) as running:
        job = running.wait()

    assert "beside named" in job.stdout, job.stderr


@pytest.mark.parametrize("is_set", [pytest.param(True, id="set"), extended(False, id="not set")])
def test_script_has_the_temporary_directory_of_its_user(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    is_set: bool,  # noqa: FBT001
) -> None:
    monkeypatch.delenv("TMPDIR", raising=False)
    monkeypatch.setattr(tempfile, "tempdir", None)
    script = tmp_path / "train.py"
    script.write_text(
        "import os, tempfile\nprint('has', os.environ.get('TMPDIR'), tempfile.gettempdir())\n"
    )
    preparation = "import os; print('user', os.environ['TMPDIR'], flush=True)\n"
    if not is_set:
        preparation = "import os; del os.environ['TMPDIR']\n"
    request = PreparedJob(script=script, run_dir=tmp_path / "run", preparation=preparation)

    with start_job(request) as running:
        job = running.wait()

    said = [line.partition("] ")[2] or line for line in job.stdout.splitlines()]
    place = said[0].removeprefix("user ") if is_set else None
    assert said[-1] == f"has {place} {place or tempfile.gettempdir()}", job.stderr
    assert job.leftovers == ()


def test_memory_of_a_job_that_was_killed_whole_is_freed_by_the_next_job(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """As the OOM killer does to a cgroup: nobody of the job is left to clean up."""
    request = request_of(LONG, tmp_path / "first", workers=2)
    with start_job(request) as first:
        first.wait_for("step", step=3)
        directory = next(Path("/dev/shm").glob(f"holdfast-{first.pid}-*"))
        victims = list(first.processes())
        for pid in victims:
            os.kill(pid, signal.SIGSTOP)  # or some would clean up
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        assert wait_all_ended(victims, 60) == ()

        with start_job(request_of(EVEN, tmp_path / "second", workers=2)) as running:
            second = running.wait()

    assert_whole(second, EVEN, undisturbed(EVEN))
    assert not directory.exists()  # a job of another test may have been faster


@pytest.mark.extended  # tests/runtime/system has the directory
def test_private_directory_that_is_removed_is_made_again(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """As systemd does with all of a user's files in /dev/shm when the last session ends."""
    plain = request_of(LONG, tmp_path / "run", workers=2)
    argv = [*plain.argv, "--gates", str(tmp_path), "--gate-steps", "60"]
    with start_job(replace(plain, argv=argv)) as running:
        running.wait_for("checkpoint")
        (directory,) = Path("/dev/shm").glob(f"holdfast-{running.pid}-*")
        shutil.rmtree(directory)
        asked = holdfast_code("save", plain.run_dir, "--no-wait")
        for number in (signal.SIGSTOP, signal.SIGKILL):  # or survivors would repair in between
            for worker in range(2):
                running.signal(number, f"holdfast-w{worker}")
        (tmp_path / "60").touch()
        job = running.wait()

    assert asked == 0
    assert_whole(job, LONG, undisturbed(LONG))
    assert len(job.report.relaunches) == 1
    assert f"private directory {directory} was removed, and was made again" in job.stderr
    assert not directory.exists()
