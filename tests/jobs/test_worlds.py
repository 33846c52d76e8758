"""The bytes of a run do not depend on how many workers it has."""

from __future__ import annotations

from pathlib import Path

import pytest
from extended import shortened
from workload import EVEN, SLICED, UNEVEN, Undisturbed, Workload, assert_whole, request_of, run_job

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("workers", shortened([2, 3, 4, 5], here=[2, 5]))
@pytest.mark.parametrize(
    "workload", shortened([EVEN, UNEVEN], here=[UNEVEN]), ids=["even", "uneven"]
)
def test_bytes_are_those_of_one_worker(
    tmp_path: Path, undisturbed: Undisturbed, workload: Workload, workers: int
) -> None:
    job = run_job(request_of(workload, tmp_path, workers=workers))

    assert_whole(job, workload, undisturbed(workload))
    assert job.report.failures == ()


@pytest.mark.parametrize("workers", shortened([2, 4], here=[4]))
def test_bytes_are_those_of_one_worker_when_vectors_are_exchanged_in_slices(
    tmp_path: Path, undisturbed: Undisturbed, workers: int
) -> None:
    job = run_job(request_of(SLICED, tmp_path, workers=workers))

    assert_whole(job, SLICED, undisturbed(SLICED))


def test_a_spare_takes_the_place_of_a_victim(tmp_path: Path, undisturbed: Undisturbed) -> None:
    request = request_of(
        UNEVEN, tmp_path, workers=2, options=["--spares", "1"], faults=["kill worker=0 step=5"]
    )
    job = run_job(request)

    assert_whole(job, UNEVEN, undisturbed(UNEVEN))
    assert job.events("world")[0]["capacity"] == 2
    assert job.report.recoveries[0].survivors == (1, 2)
