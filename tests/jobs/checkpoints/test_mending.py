"""Checkpoints that rot on the disk, between two jobs and during one: the bytes are as ever."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from extended import shortened
from workload import Undisturbed, Workload, assert_whole, request_of

from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import start_job

pytestmark = pytest.mark.mpi

TRAINED = Workload(microbatches=7, samples=173, global_batch=25, epochs=12)


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
