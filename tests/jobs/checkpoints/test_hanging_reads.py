"""A file server that stops answering: what a job reads from it comes late, or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from workload import LONG, PreparedJob, Undisturbed, assert_whole, request_of

from holdfast.runtime.errors import ExitCode
from holdfast.testing import RunningJob, start_job

pytestmark = [
    pytest.mark.mpi,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("bindfs") is None or not os.path.exists("/dev/fuse"),
        reason="a file server of our own takes root, /dev/fuse and bindfs (Debian: bindfs)",
    ),
]

WORKERS = 2
HEARTBEAT_TIMEOUT_S = 2.0
BOUND_S = 60.0
IMPATIENT = """
from holdfast.runtime.run import files
files.TELLS_AFTER_S, files.GIVES_UP_AFTER_S = 0.2, 0.5
"""


class Server:
    """A file server for one directory, which can be stopped."""

    def __init__(self, path: Path, mount: Path) -> None:
        self._path, self._mount = path, mount
        self.start()

    def start(self) -> None:
        """Serve, with nothing in any cache."""
        self._process = subprocess.Popen(["bindfs", "-f", self._path, self._mount])
        while not self._mount.is_mount():
            assert self._process.poll() is None

    def stand_still(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def restart(self) -> None:
        """Forget what any cache holds."""
        self.end()
        self.start()

    def end(self) -> None:
        self.go_on()
        subprocess.run(["umount", self._mount], check=True)
        self._process.wait()


@contextlib.contextmanager
def _served(path: Path, mount: Path) -> Iterator[Server]:
    path.mkdir()
    mount.mkdir(parents=True)
    server = Server(path, mount)
    try:
        yield server
    finally:
        server.end()


def _wait_for_one_that_waits(running: RunningJob) -> None:
    """Wait until a worker is inside a call that the server does not answer."""
    until = time.monotonic() + BOUND_S
    while time.monotonic() < until:
        for pid, name in running.processes().items():
            with contextlib.suppress(OSError):
                is_inside = "request_wait_answer" in Path(f"/proc/{pid}/wchan").read_text()
                if is_inside and name.startswith("holdfast-w"):
                    return
        time.sleep(0.02)
    raise TimeoutError("no worker reads from the server")


@pytest.mark.extended  # the test beside it has a server that hangs
def test_worker_that_reads_from_a_server_that_hangs_is_waited_for(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A hang of several heartbeat timeouts costs its own time: no worker and no checkpoint."""
    run_dir = tmp_path / "run"
    limit = ("--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S))
    plain = request_of(LONG, run_dir, workers=WORKERS)
    gated = [*plain.argv, "--gates", str(tmp_path), "--gate-steps", "0"]
    request = replace(plain, argv=gated, options=(*plain.options, *limit))
    gate = tmp_path / "0"
    gate.touch()
    with _served(tmp_path / "served", run_dir / "checkpoints") as server:
        with start_job(request) as first:
            first.wait_for("checkpoint")
            first.signal(signal.SIGTERM)
            assert first.wait().exit_code == ExitCode.STOPPED_EARLY
        server.restart()
        gate.unlink()
        before = len(first.journal)
        with start_job(request) as second:
            while "launch" not in [record["event"] for record in second.journal[before:]]:
                time.sleep(0.01)
            server.stand_still()
            gate.touch()
            _wait_for_one_that_waits(second)
            time.sleep(3 * HEARTBEAT_TIMEOUT_S)  # the hang that is outlived
            server.go_on()
            job = second.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert job.report.failures == ()
    assert [record["event"] for record in job.journal[before:]].count("launch") == 1


def test_run_directory_that_does_not_answer_is_told_of_and_given_up(tmp_path: Path) -> None:
    plain = request_of(LONG, tmp_path / "run", workers=WORKERS)
    request = PreparedJob(**asdict(plain), preparation=IMPATIENT)
    with _served(tmp_path / "served", tmp_path / "run") as server:
        server.stand_still()
        done = subprocess.run(request.command(), capture_output=True, text=True, check=False)

    assert done.returncode == ExitCode.STOPPED_EARLY
    assert f"run directory {tmp_path / 'run'} has not answered" in done.stderr
    assert "nothing is known to be damaged" in done.stderr
