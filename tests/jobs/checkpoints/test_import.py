"""A run that is made of a NumPy file, by a replica that knows no framework."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from extended import shortened
from imports import ImportRequest, export
from workload import EVEN, SCRIPT, Workload, assert_refused, request_of

from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import JobRun, start_job

pytestmark = pytest.mark.mpi

THREADS = ("--threads", "1")


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that a run has ended with."""
    folder = tmp_path_factory.mktemp("archive")
    with start_job(request_of(EVEN, folder / "numpy", workers=1)) as running:
        assert running.wait().exit_code == 0
    export(folder / "numpy", folder / "w.npz")
    return folder / "w.npz"


def import_archive(archive: Path, run_dir: Path, *options: str) -> JobRun:
    request = ImportRequest(
        script=SCRIPT,
        run_dir=run_dir,
        workers=EVEN.microbatches,
        argv=EVEN.argv,
        options=[*THREADS, *options],
        weights=archive,
    )
    with start_job(request) as running:
        return running.wait()


@pytest.mark.parametrize("sizes", shortened([(2,), (1, 2, 3)], here=[(2,)]))
def test_run_made_of_an_archive_ends_with_the_same_bytes(
    archive: Path, tmp_path: Path, sizes: tuple[int, ...]
) -> None:
    initial = ["--initial", str(archive)]
    with start_job(request_of(EVEN, tmp_path / "begun", workers=1, options=initial)) as running:
        begun = running.wait()

    job = import_archive(archive, tmp_path / "run")

    assert job.exit_code == 0, job.stderr
    assert begun.exit_code == 0, begun.stderr
    for workers in sizes:
        run_dir = shutil.copytree(tmp_path / "run", tmp_path / f"run-{workers}")
        with start_job(request_of(EVEN, run_dir, workers=workers)) as running:
            done = running.wait()
        assert (done.exit_code, done.sha256) == (0, begun.sha256), done.stderr


def test_import_into_the_directory_of_a_running_job(archive: Path, tmp_path: Path) -> None:
    endless = Workload(2, samples=160, global_batch=40, epochs=100_000, save_every=10**9)
    with start_job(request_of(endless, tmp_path / "run", workers=1)) as first:
        first.wait_for("step", step=2)

        job = import_archive(archive, tmp_path / "run")
        forced = import_archive(archive, tmp_path / "run", "--fresh")

        assert "holdfast-w0" in first.processes().values()
    for refused in (job, forced):
        assert_refused(refused, 76, str(tmp_path / "run"), f"pid {first.pid}")
    assert (tmp_path / "run" / "RUN.json").exists()


def test_import_whose_worker_dies_is_launched_again(archive: Path, tmp_path: Path) -> None:
    script = tmp_path / "dies_once.py"
    script.write_text(
        "import os, pathlib, runpy, signal\n"
        "mark = pathlib.Path(__file__).with_name('died')\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
    )
    request = ImportRequest(
        script=script, run_dir=tmp_path / "run", argv=EVEN.argv, weights=archive
    )

    with start_job(request) as running:
        job = running.wait()

    assert job.exit_code == 0, job.stderr
    assert [failure.cause for failure in job.report.failures] == ["signal SIGKILL"]
    assert CheckpointStore(tmp_path / "run").steps() == (0,)
    assert job.leftovers == ()


def test_what_follows_a_job_in_its_process_can_be_interrupted(tmp_path: Path) -> None:
    """After an import that is the reading back of its checkpoint, which may take long."""
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
