"""A server that refuses locks: the lease is renewed instead, which is told once."""

from __future__ import annotations

import pytest
from extended import extended
from faults import Rule
from faulty_mount import FaultyMount, needs_a_server
from workload import LONG, Undisturbed, assert_refused, assert_whole, request_of, run_job

from holdfast.runtime.errors import RunDirectoryBusy
from holdfast.testing import start_job

pytestmark = [pytest.mark.mpi, needs_a_server]


@pytest.mark.parametrize("error", [extended("ENOLCK"), extended("ENOSYS"), extended("EOPNOTSUPP")])
def test_run_goes_on_without_locks_and_has_one_job_at_a_time(
    error: str, faulty: FaultyMount, undisturbed: Undisturbed
) -> None:
    run_dir = faulty.path / "run"
    faulty.set(Rule(("flock",), error=error))
    with start_job(request_of(LONG, run_dir, workers=2)) as running:
        running.wait_for("checkpoint")
        refused = run_job(request_of(LONG, run_dir, workers=1))
        job = running.wait()

    assert faulty.struck() >= 2
    assert_refused(refused, RunDirectoryBusy.exit_code, "belongs to another job")
    assert_whole(job, LONG, undisturbed(LONG))
    assert job.stderr.count("has no locks (flock)") == 1
