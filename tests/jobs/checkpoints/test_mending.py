"""Checkpoints that rot on the disk between two jobs: the bytes are as ever."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from extended import shortened
from workload import Undisturbed, Workload, assert_whole, request_of, run_job

from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import start_job

pytestmark = pytest.mark.mpi

TRAINED = Workload(microbatches=7, samples=173, global_batch=25, epochs=12)


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


@pytest.mark.extended  # the test beside it has the damage
@pytest.mark.parametrize("workers", shortened([1, 3], here=[3]))
def test_job_resumes_from_an_older_step_if_the_newest_is_damaged(
    tmp_path: Path, undisturbed: Undisturbed, workers: int
) -> None:
    store = train_twice(tmp_path / "run")
    newest, older = store.steps()[:2]
    path = next((store.directory / step_name(newest)).glob("*.h5"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

    job = run_job(request_of(TRAINED, tmp_path / "run", workers=workers))

    assert_whole(job, TRAINED, undisturbed(TRAINED))
    assert [rejected["step"] for rejected in job.events("rejected")] == [newest]
    assert job.events("restored")[-1]["step"] == older
    told = f"training goes on from checkpoint step {older}, because step {newest} is damaged; to"
    assert job.stderr.count(told) == 1
