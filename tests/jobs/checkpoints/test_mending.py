"""Checkpoints that rot on the disk, between two jobs and during one: the bytes are as ever."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from extended import extended, shortened
from workload import Undisturbed, Workload, assert_whole, request_of

from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import start_job

pytestmark = pytest.mark.mpi

KEEPING = Path(__file__).parents[1] / "scripts" / "keeping.py"
TRAINED = Workload(microbatches=7, samples=173, global_batch=25, epochs=12)
SEVERAL_SECONDS = Workload(microbatches=7, samples=173, global_batch=25, epochs=60, pause_ms=20)
SCRUB_EVERY_S = 4
"""Long enough for a step to be damaged before the first scrub, and less than the job takes."""


def flip(store: CheckpointStore, step: int, shard: int = 0) -> None:
    """Flip a bit in the middle of a shard."""
    path = sorted((store.directory / step_name(step)).glob("*.h5"))[shard]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def train_twice(run_dir: Path) -> CheckpointStore:
    """Train half of the epochs, then all; return the checkpoints, at least the last of each part.

    Saves that are due while another one is in flight are skipped, but never the last.
    """
    for epochs in (4, 8):
        part = replace(TRAINED, epochs=epochs)
        options = ["--shards", "2"]
        with start_job(request_of(part, run_dir, workers=2, options=options)) as running:
            assert running.wait().exit_code == 0
    return CheckpointStore(run_dir)


@pytest.mark.parametrize("workers", shortened([1, 3], here=[3]))
def test_job_resumes_from_the_newest_step_although_it_was_damaged(
    tmp_path: Path, undisturbed: Undisturbed, workers: int
) -> None:
    """Both copies are damaged, in different places."""
    store = train_twice(tmp_path / "run")
    newest = store.steps()[0]
    shutil.copytree(tmp_path / "run", tmp_path / "mirror")
    flip(store, newest, shard=0)
    flip(CheckpointStore(tmp_path / "mirror"), newest, shard=1)

    options = ["--repair-from", str(tmp_path / "mirror")]
    request = request_of(TRAINED, tmp_path / "run", workers=workers, options=options)
    with start_job(request) as running:
        job = running.wait()

    assert_whole(job, TRAINED, undisturbed(TRAINED))
    (repaired,) = job.events("mended")
    assert (repaired["step"], repaired["taken"]) == (newest, 1)
    assert repaired["source"] == "snapshot writer"
    assert job.events("restored")[-1]["step"] == newest
    assert job.stderr.count(f"checkpoint step {newest} was mended, 1 of ") == 1


@pytest.mark.parametrize(
    "is_mirrored", [extended(False, id="alone"), pytest.param(True, id="mirrored")]
)
def test_old_step_that_rots_while_the_job_trains_is_found(
    tmp_path: Path, undisturbed: Undisturbed, *, is_mirrored: bool
) -> None:
    """The first scrub comes some seconds after the first commit, and reads the oldest step."""
    run_dir, mirror = tmp_path / "run", tmp_path / "mirror"
    options = [
        "--scrub-every",
        str(SCRUB_EVERY_S),
        *(["--repair-from", str(mirror)] if is_mirrored else []),
    ]
    request = request_of(SEVERAL_SECONDS, run_dir, workers=2, options=options)
    with start_job(replace(request, script=KEEPING)) as running:
        running.wait_for("checkpoint", step=5)
        store = CheckpointStore(run_dir)
        shutil.copytree(run_dir, mirror)
        flip(store, 5)
        found = running.wait_for("scrub_failed")
        job = running.wait()

    assert_whole(job, SEVERAL_SECONDS, undisturbed(SEVERAL_SECONDS))
    assert (found["step"], found["mended"]) == (5, is_mirrored)
    assert found["moved_to"] in store.names()
    assert [record["step"] for record in job.events("mended")] == [5] * is_mirrored
    assert (5 in store.steps()) == is_mirrored
    assert all(verify_step(store, step).is_valid for step in store.steps())
    assert "checkpoint step 5 does not verify any more" in job.stderr
