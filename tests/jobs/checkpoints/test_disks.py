"""Disks that are full, or gone, in the middle of training: it goes on, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from commands import holdfast_code
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.journal import Record
from holdfast.testing import RunningJob, start_job

pytestmark = pytest.mark.mpi


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A run directory whose checkpoints lie on a disk of their own, of 256 KiB."""
    mount = tmp_path / "checkpoints"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "holdfast-test", str(mount)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system takes root")
    yield tmp_path
    subprocess.run(["umount", str(mount)], check=True)


def test_full_disk_fails_saves_and_never_training(
    small_disk: Path, undisturbed: Undisturbed
) -> None:
    """More saves fail than the last one is tried, and the disk is emptied in time for that."""
    ballast = small_disk / "checkpoints" / "ballast"
    with start_job(request_of(LONG, small_disk, workers=2)) as running:
        running.wait_for("checkpoint")
        _fill(ballast)
        running.wait_for("checkpoint_failed")
        before = CheckpointStore(small_disk).steps()
        intact = [restore(CheckpointStore(small_disk), step).manifest.step for step in before]
        failed = _failures(running, at_least=5)
        ballast.unlink()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert list(before) == intact
    assert all("No space left on device" in record["reason"] for record in failed)
    assert "free space or keep fewer checkpoints" in job.stderr
    assert CheckpointStore(small_disk).steps()[0] == LONG.steps


@pytest.mark.extended
def test_launch_makes_room_for_another_only_if_the_disk_takes_a_checkpoint_of_its_world(
    small_disk: Path, undisturbed: Undisturbed
) -> None:
    """Its workers could not stop.  Saves fail above."""
    faults = [f"kill worker={worker} step={62 + worker}" for worker in range(3)]
    options = ["--max-restarts", "0"]
    plain = request_of(LONG, small_disk, workers=4, faults=faults, options=options)
    gates = ["--gates", str(small_disk), "--gate-steps", "60", "130"]
    with start_job(replace(plain, argv=[*plain.argv, *gates])) as running:
        running.wait_for("checkpoint")
        _remount(small_disk / "checkpoints", "ro")
        (small_disk / "60").touch()
        alone = running.wait_for("world", workers=[3])
        assert holdfast_code("scale", small_disk, 4) == 0
        running.wait_for("checkpoint_failed", generation=alone["generation"])
        before = {record["event"] for record in running.journal}
        _remount(small_disk / "checkpoints", "rw")
        (small_disk / "130").touch()
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert "renewing" not in before
    (renewal,) = job.report.relaunches
    assert (renewal.is_renewal, len(renewal.workers)) == (True, 4)


@pytest.mark.extended  # the test beside it fills the disk
def test_job_that_dies_whole_beside_a_disk_that_takes_nothing_goes_on_from_what_it_has(
    small_disk: Path, undisturbed: Undisturbed
) -> None:
    with start_job(request_of(LONG, small_disk, workers=2)) as running:
        running.wait_for("checkpoint")
        _remount(small_disk / "checkpoints", "ro")
        _failures(running, at_least=3)
        on_disk = CheckpointStore(small_disk).steps()[0]
        _kill_both(running)
        restored = running.wait_for("restored")
        _remount(small_disk / "checkpoints", "rw")
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert len(job.report.relaunches) == 1
    assert restored["step"] == on_disk


@pytest.mark.extended
def test_job_that_dies_whole_goes_on_although_it_cannot_even_keep_its_journal(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """No process can write at the journal's place.

    Above, the journal can be written.
    """
    with start_job(request_of(LONG, tmp_path, workers=2)) as running:
        running.wait_for("checkpoint")
        (tmp_path / "journal.jsonl").unlink()
        (tmp_path / "journal.jsonl").mkdir()
        _kill_both(running)
        job = running.wait()

    assert (job.exit_code, job.leftovers) == (0, ())
    assert f"state sha256 {undisturbed(LONG)}" in job.stderr
    assert "loses events" in job.stderr
    assert CheckpointStore(tmp_path).steps()[0] == LONG.steps


def _kill_both(running: RunningJob) -> None:
    for worker in (0, 1):
        running.signal(signal.SIGKILL, f"holdfast-w{worker}")


def _remount(mount: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(mount)], check=True)


def _failures(running: RunningJob, at_least: int) -> list[Record]:
    """Wait for the saves of so many steps to fail."""
    failed: dict[int, Record] = {}
    while len(failed) < at_least:
        running.wait_for("step", step=max(failed, default=0) + 5)
        failed.update((r["step"], r) for r in running.journal if r["event"] == "checkpoint_failed")
    return list(failed.values())


def _fill(path: Path) -> None:
    """Take all the space that is left."""
    with path.open("wb", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
