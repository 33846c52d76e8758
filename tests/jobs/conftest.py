"""Fixtures for tests of whole jobs; the modules beside this file can be imported by name."""

from __future__ import annotations

from dataclasses import replace

import pytest
from workload import Undisturbed, Workload, request_of

from holdfast.testing import start_job


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    """The digest that a workload must end with: that of one worker to whom nothing happens."""
    known: dict[Workload, str] = {}

    def sha256(workload: Workload) -> str:
        workload = replace(workload, pause_ms=0)  # no pause changes a byte
        if workload not in known:
            request = request_of(workload, tmp_path_factory.mktemp("undisturbed"), workers=1)
            with start_job(request) as running:
                job = running.wait()
            assert job.exit_code == 0, job.stderr
            assert job.sha256 is not None
            known[workload] = job.sha256
        return known[workload]

    return sha256
