"""Wrong requests: one line names the fault and the remedy, and nothing is left behind.

Here the mistake is in the command line, the run directory or the MPI; mistakes in the
script are in ``test_bad_scripts``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from workload import EVEN, SCRIPT, Undisturbed, Workload, assert_refused, assert_whole, request_of

from holdfast.runtime.host.launchers import find_mpiexec
from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = pytest.mark.mpi

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")


def _run(request: JobRequest) -> JobRun:
    with start_job(request) as running:
        return running.wait()


def _run_with(run_dir: Path, *options: str, environment: dict[str, str] | None = None) -> JobRun:
    return _run(request_of(EVEN, run_dir, workers=2, options=options, environment=environment))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of 512 KiB."""
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "small", place], check=True)
    yield place
    subprocess.run(["umount", place], check=True)


def _fake_mpiexec(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def mpiexec_without_ulfm(tmp_path: Path) -> Path:
    """The real one, which is never told to survive a failure."""
    script = (
        "while (($#)); do\n"
        "  case $1 in\n"
        "    --with-ft) shift 2 ;;\n"
        "    --prtemca) shift 3 ;;\n"
        '    *) kept+=("$1"); shift ;;\n'
        "  esac\n"
        "done\n"
        f'exec {find_mpiexec()} "${{kept[@]}}"'
    )
    return _fake_mpiexec(tmp_path / "mpiexec", script)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-n", "0"], ["-n", "at least 1", "0"]),
        (["--save-every", "10m"], ["--save-every", "'10m'", "min"]),
        (["--inject", "lose host=b step=1"], ["lose host=b", "no host b", "name a worker"]),
        (["--hosts", "localhost:1,c:1", "--inject", "cut host=b step=1"], ["no host b", ", c"]),
        (["--mpiexec", "/nonexistent/mpiexec"], ["/nonexistent/mpiexec", "--mpiexec"]),
        (["--no-such-option"], ["--no-such-option"]),
    ],
)
def test_wrong_options_are_refused(
    tmp_path: Path, options: Sequence[str], words: Sequence[str]
) -> None:
    """Every option is refused so in tests/runtime/options and tests/runtime/commands."""
    job = _run_with(tmp_path / "run", *options)

    assert_refused(job, 2, *words)
    assert len(job.stderr.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_an_mpi_that_does_not_survive_a_death(tmp_path: Path, mpiexec_without_ulfm: Path) -> None:
    job = _run_with(
        tmp_path / "run",
        *("--mpiexec", str(mpiexec_without_ulfm)),
        environment={"XDG_CACHE_HOME": str(tmp_path / "cache")},
    )

    assert_refused(job, 2, "ULFM", str(mpiexec_without_ulfm), "--no-shrink")


@needs_root
def test_a_run_directory_on_a_read_only_file_system(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)

    job = _run_with(small)

    assert_refused(job, 2, str(small), "Read-only file system", "--run-dir")


@needs_root
def test_a_full_run_directory(small: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        (small / "ballast").write_bytes(bytes(1 << 20))

    job = _run_with(small)

    assert_refused(job, 75, str(small), "No space left on device", "free space there")


def test_the_run_of_another_model(tmp_path: Path) -> None:
    narrow = Workload(microbatches=4, samples=160, global_batch=40, epochs=4, features=16)
    assert _run(request_of(EVEN, tmp_path, workers=1)).exit_code == 0

    job = _run(request_of(narrow, tmp_path, workers=2))

    assert_refused(job, 2, str(tmp_path), "weights", "velocity", "--run-dir", "--fresh")


@pytest.mark.parametrize("content", [b"{", b'{"format": 99}'])
def test_an_unreadable_record_of_the_run(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "RUN.json").write_bytes(content)

    job = _run_with(tmp_path)

    assert_refused(job, 2, str(tmp_path / "RUN.json"), "--fresh")
    assert (tmp_path / "RUN.json").read_bytes() == content


def test_checkpoints_none_of_which_is_valid(tmp_path: Path, undisturbed: Undisturbed) -> None:
    request = request_of(EVEN, tmp_path, workers=2)
    assert _run(request).exit_code == 0
    for manifest in tmp_path.glob("checkpoints/step-*/MANIFEST.json"):
        manifest.write_text("{}")

    job = _run(request)
    fresh = _run(request_of(EVEN, tmp_path, workers=2, options=["--fresh"]))

    assert_refused(job, 70, "none of the", str(tmp_path), "--fresh")
    assert_whole(fresh, EVEN, undisturbed(EVEN))


def test_a_second_job_on_the_same_run_directory(tmp_path: Path) -> None:
    endless = Workload(microbatches=2, samples=160, global_batch=40, epochs=100_000)
    with start_job(request_of(endless, tmp_path, workers=1)) as first:
        first.wait_for("step", step=2)

        second = _run(request_of(endless, tmp_path, workers=1))

        assert_refused(second, 76, str(tmp_path), f"pid {first.pid}", "--run-dir")
        assert "holdfast-w0" in first.processes().values()


def test_a_script_elsewhere_is_found_by_its_relative_path(tmp_path: Path) -> None:
    job = _run(JobRequest(script=os.path.relpath(SCRIPT), run_dir=tmp_path, argv=["--epochs", "1"]))

    assert job.exit_code == 0, job.stderr
