"""A job whose workers all wait for each other ends by itself, and goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.testing import start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(150)]

SCRIPT = Path(__file__).parent / "scripts" / "lost_event.py"


@pytest.mark.extended  # tests/recovery/test_stall.py has what waits for all
def test_launch_in_which_mpi_has_lost_an_event_is_ended_and_relaunched(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    options = ["--heartbeat-timeout", "2"]
    plain = request_of(LONG, tmp_path / "run", workers=3, options=options)
    argv = [str(tmp_path / "happened"), *plain.argv]
    request = replace(plain, script=SCRIPT, argv=argv)

    with start_job(request) as running:
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    (stalled,) = job.events("stalled")
    assert stalled["workers"] == [0, 1, 2]
    assert "have waited for each other inside MPI" in job.stderr
    assert len(job.report.relaunches) == 1
