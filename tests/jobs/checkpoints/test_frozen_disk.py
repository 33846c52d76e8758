"""A disk that hangs: its calls return neither a result nor an error until it comes back."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.testing import start_job

pytestmark = pytest.mark.mpi

STEPS = 40
WORKERS = 2


class FrozenDisk:
    """A file system of its own whose writers can be made to wait in the kernel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._is_frozen = False

    def freeze(self) -> None:
        subprocess.run(["fsfreeze", "--freeze", self.path], check=True)
        self._is_frozen = True

    def thaw(self) -> None:
        if self._is_frozen:
            subprocess.run(["fsfreeze", "--unfreeze", self.path], check=True)
            self._is_frozen = False


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[FrozenDisk]:
    image, mount = tmp_path / "image", tmp_path / "run"
    image.touch()
    os.truncate(image, 32 << 20)
    mount.mkdir()
    make = (["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(mount)])
    for command in make:
        if (
            os.geteuid() != 0
            or subprocess.run(command, capture_output=True, check=False).returncode
        ):
            pytest.skip("mounting a file system takes root")
    disk = FrozenDisk(mount)
    try:
        yield disk
    finally:
        disk.thaw()
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.extended  # one that is not read runs in test_hanging_reads.py
def test_training_goes_on_beside_a_run_directory_that_hangs(
    disk: FrozenDisk, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Saves and journal wait for it, and nobody takes a healthy worker for a dead one."""
    trace = tmp_path / "trace"
    plain = request_of(LONG, disk.path / "run", workers=WORKERS)
    request = replace(plain, argv=[*plain.argv, "--trace", str(trace)])
    with start_job(request) as running:
        running.wait_for("checkpoint")
        disk.freeze()
        before = _applied(trace)
        while _applied(trace) < before + STEPS * WORKERS:
            assert running.processes(), running.stderr
        disk.thaw()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert job.report.failures == ()
    assert [step["step"] for step in job.events("step")] == list(range(1, LONG.steps + 1))


def _fails(command: Sequence[str]) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode != 0


def _applied(trace: Path) -> int:
    return trace.read_bytes().count(b"\n")
