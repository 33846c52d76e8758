"""Jobs with a second place for their checkpoints: a bucket of a real server on loopback."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import holdfast_code
from extended import extended
from s3_server import BUCKET, S3Server, s3_server
from workload import EVEN, Undisturbed, assert_whole, request_of, run_job

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run.place import Place
from holdfast.testing import JobRequest, start_job

pytestmark = pytest.mark.mpi

PACED = replace(EVEN, save_every=2, pause_ms=5)
GATE = 7
"""All workers wait here until a file of this name is beside the run directory."""
URL = f"{BUCKET}/runs/one"
LAST = PACED.steps


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        yield server


def copying(run_dir: Path, *options: str) -> JobRequest:
    request = request_of(PACED, run_dir, workers=2, options=("--copy-to", URL, *options))
    gates = ("--gates", str(run_dir.parent), "--gate-steps", str(GATE))
    return replace(request, argv=[*request.argv, *gates])


def open_gate(folder: Path) -> None:
    (folder / str(GATE)).touch()


def test_run_whose_directory_is_gone_goes_on_from_the_bucket(
    server: S3Server,
    tmp_path: Path,
    undisturbed: Undisturbed,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_dir = tmp_path / "run"
    with start_job(copying(run_dir)) as running:
        running.wait_for("copied")
        running.signal(signal.SIGTERM)
        open_gate(tmp_path)
        stopped = running.wait()
    shutil.rmtree(run_dir)
    job = run_job(copying(run_dir))

    (first, *_) = [step for step in Place(URL).store.steps() if step < LAST]
    assert stopped.exit_code == ExitCode.STOPPED_EARLY, stopped.stderr
    assert 0 < stopped.report.steps < LAST
    assert f"resuming paced.py from step {stopped.report.steps} on" in job.stderr
    assert f"took step {stopped.report.steps} from {URL}" in job.stderr
    assert (job.exit_code, job.sha256, job.leftovers) == (0, undisturbed(PACED), ())
    assert Place(URL).store.steps()[0] == LAST
    assert Place(URL).store.scan(first).verify()
    assert holdfast_code("status", run_dir) == 0
    assert f"copies      step {LAST}, " in capsys.readouterr().out


@pytest.mark.parametrize("way", ["killed", extended("hanging")])
def test_server_that_is_gone_costs_no_step_and_is_told_once(
    way: str, server: S3Server, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with start_job(copying(tmp_path / "run")) as running:
        running.wait_for("copied")
        if way == "killed":
            server.kill()
            open_gate(tmp_path)
            job = running.wait()
        else:
            with server.hanging():
                open_gate(tmp_path)
                job = running.wait()

    assert_whole(job, PACED, undisturbed(PACED))
    failed, lacking = (told["text"] for told in job.events("copies_told"))
    assert failed.startswith("none just now: ")
    assert lacking.startswith(f"step {LAST} is in the run directory alone; ")
    assert job.stderr.count(f"copies to {URL}: none just now") == 1


def test_signal_ends_the_wait_for_a_server_that_hangs(
    server: S3Server, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with start_job(copying(tmp_path / "run")) as running:
        running.wait_for("copied")
        with server.hanging():
            open_gate(tmp_path)
            while f"copying what is left to {URL}" not in running.stderr:
                assert running.processes(), running.stderr
                time.sleep(0.05)
            running.signal(signal.SIGTERM)
            job = running.wait()

    assert_whole(job, PACED, undisturbed(PACED))


def test_server_that_is_back_gets_what_it_missed(
    server: S3Server, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A job that is done already copies what the place lacks, if it is run again."""
    server.kill()
    open_gate(tmp_path)
    begun = run_job(request_of(PACED, tmp_path / "run", workers=2))
    server.start_again()
    job = run_job(copying(tmp_path / "run", "--again"))

    assert begun.sha256 == job.sha256 == undisturbed(PACED)
    assert not job.events("copies_told")
    assert Place(URL).store.scan(LAST).verify().step == LAST


def test_copier_that_is_killed_is_started_again(
    server: S3Server, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    with start_job(copying(tmp_path / "run")) as running:
        running.wait_for("copied")
        running.signal(signal.SIGKILL, "holdfast-copier")
        open_gate(tmp_path)
        job = running.wait()

    assert_whole(job, PACED, undisturbed(PACED))
    assert Place(URL).store.scan(LAST).verify().step == LAST


def test_second_run_is_refused_the_place_of_another(server: S3Server, tmp_path: Path) -> None:
    open_gate(tmp_path)
    run_job(copying(tmp_path / "one"))
    job = run_job(copying(tmp_path / "two", "--fresh"))

    assert job.exit_code == ExitCode.USAGE
    assert "and --fresh begins another one; give that a URL of its own" in job.stderr


def test_place_of_another_run_leaves_nothing_in_a_new_run_directory(
    server: S3Server, tmp_path: Path
) -> None:
    """So the same command with another URL begins the run that was meant."""
    open_gate(tmp_path)
    run_job(copying(tmp_path / "one"))
    other = tmp_path / "other.py"
    other.write_text("import holdfast\n")
    script = run_job(replace(copying(tmp_path / "two"), script=other))
    seed = run_job(copying(tmp_path / "two", "--seed", "5"))

    assert (script.exit_code, seed.exit_code) == (ExitCode.USAGE, ExitCode.USAGE)
    assert f"give {other} a URL of its own by --copy-to" in script.stderr
    assert f"{URL} holds a run with seed 0, not 5: " in seed.stderr
    assert [path.name for path in (tmp_path / "two").iterdir()] == ["lease"]
