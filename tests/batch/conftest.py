"""A Slurm cluster for the tests of this folder, if one can be started here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from leftovers import Leftovers
from slurm import SlurmCluster, running_cluster, why_not
from workload import LONG, request_of

from holdfast.testing import start_job


@pytest.fixture(scope="session")
def cluster(leftovers: Leftovers) -> Iterator[SlurmCluster]:
    """Slurm on this machine, for all tests that want it."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with running_cluster() as made:
        leftovers.keep(made.keeper)
        yield made


@pytest.fixture(scope="session")
def sha256(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run that nobody disturbs; no pause changes it."""
    workload = replace(LONG, pause_ms=0)
    request = request_of(workload, tmp_path_factory.mktemp("undisturbed"), workers=1)
    with start_job(request) as running:
        job = running.wait()
    assert job.exit_code == 0, job.stderr
    assert job.sha256 is not None
    return job.sha256
