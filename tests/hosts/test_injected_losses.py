"""``--inject`` loses a host from inside, as on a cluster that nothing stands beside."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster import Cluster
from extended import shortened
from host_jobs import HostJob, assert_whole
from workload import EVEN, Undisturbed, request_of

pytestmark = [pytest.mark.mpi, pytest.mark.process]


@pytest.mark.parametrize("kind", shortened(["lose", "cut", "freeze"], ["lose"]))
def test_an_injected_loss_of_a_host_changes_no_byte(
    cluster: Cluster, tmp_path: Path, undisturbed: Undisturbed, kind: str
) -> None:
    fault = f"{kind} host=b step=7"
    options = ("--heartbeat-timeout", "5")
    request = request_of(EVEN, tmp_path / "run", workers=3, faults=[fault], options=options)

    with HostJob(cluster, request, "a:1,b:2") as running:
        job = running.wait()

    assert_whole(job, undisturbed(EVEN))
    assert [record["host"] for record in job.events("host_lost")] == ["b"]
    assert sorted({failure.worker for failure in job.report.failures}) == [1, 2]
