"""A bit of one worker's weights flips: it is found, and the bytes are those of a sound machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from extended import extended
from workload import EVEN, Undisturbed, assert_whole, request_of, run_job

from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.store import CheckpointStore
from holdfast.testing import JobRun

pytestmark = pytest.mark.mpi

SCRIPT = Path(__file__).parents[1] / "scripts" / "flip.py"


def train(run_dir: Path, workers: int, flip_after: int, *options: str) -> JobRun:
    plain = request_of(EVEN, run_dir, workers=workers, options=options)
    marker = run_dir.parent / "flipped"
    argv = [*plain.argv, "--flip-after", str(flip_after), "--marker", str(marker)]
    job = run_job(replace(plain, script=SCRIPT, argv=argv))
    assert marker.exists()
    return job


def differences(job: JobRun) -> list[dict[str, object]]:
    return [record for record in job.journal if record["event"] == "memory_differs"]


@pytest.mark.parametrize("workers", [3, extended(4)])
def test_majority_names_the_worker_and_goes_on_in_place(
    tmp_path: Path, undisturbed: Undisturbed, workers: int
) -> None:
    job = train(tmp_path / "run", workers, 7, "--verify-every", "1")

    assert_whole(job, EVEN, undisturbed(EVEN))
    (found,) = differences(job)
    assert (found["step"], found["has_majority"]) == (7, True)
    assert [failure.worker for failure in job.report.failures] == found["workers"]
    assert not job.report.relaunches
    assert "is not that of the majority; it is fenced" in job.stderr


def test_save_finds_the_worker_without_being_asked(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """The save of step 5 is made by the survivors, and holds what a sound machine would."""
    job = train(tmp_path / "run", 4, 5)

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert [record["step"] for record in differences(job)] == [5]
    store = CheckpointStore(tmp_path / "run")
    for step in store.steps():
        restore(store, step)


def test_two_that_differ_go_back_to_the_last_checkpoint(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    job = train(tmp_path / "run", 2, 7, "--verify-every", "1")

    assert_whole(job, EVEN, undisturbed(EVEN))
    (found,) = differences(job)
    assert (found["step"], found["workers"], found["has_majority"]) == (7, [0, 1], False)
    assert len(job.report.relaunches) == 1
    assert [r["step"] for r in job.journal if r["event"] == "restored"] == [5]
