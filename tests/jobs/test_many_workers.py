"""More workers than cores, by far: they die in threes, and the bytes are the same."""

from __future__ import annotations

from pathlib import Path

import pytest
from workload import Undisturbed, Workload, assert_whole, request_of

from holdfast.testing import start_job

pytestmark = pytest.mark.mpi

WORKERS = 32
MANY = Workload(microbatches=40, samples=640, global_batch=80, epochs=2)
DEATHS = {3: (0, 7, 31), 7: (1, 2, 16), 11: (5, 20, 30)}
"""The workers that die, by the step."""


@pytest.mark.extended
def test_32_workers_die_in_threes_and_the_bytes_are_the_same(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Fewer die together in test_deaths.py; one agent hosts 128 in tests/runtime/host."""
    faults = [f"kill worker={worker} step={step}" for step in DEATHS for worker in DEATHS[step]]
    options = ["--heartbeat-timeout", "30"]  # two cores for all of them
    request = request_of(MANY, tmp_path, workers=WORKERS, faults=faults, options=options)

    with start_job(request, timeout_s=300) as running:
        job = running.wait()

    assert_whole(job, MANY, undisturbed(MANY))
    assert {failure.worker for failure in job.report.failures} == {0, 1, 2, 5, 7, 16, 20, 30, 31}
    survivors = set(range(WORKERS)) - {0, 1, 2, 5, 7, 16, 20, 30, 31}
    assert set(job.report.recoveries[-1].survivors) == survivors
