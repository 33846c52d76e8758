"""Fixtures for jobs on file systems that fail, lie, wait and hang."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_mount import FaultyMount, faulty_mount
from half_a_run import HALF, Begun
from workload import request_of, run_job


@pytest.fixture
def faulty(tmp_path: Path) -> Iterator[FaultyMount]:
    """A mounted file system to which nothing happens yet."""
    with faulty_mount(tmp_path) as mounted:
        yield mounted


@pytest.fixture(scope="session")
def _half_a_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("half") / "run"
    job = run_job(request_of(HALF, run_dir, workers=2))
    assert job.exit_code == 0, job.stderr
    return run_dir


@pytest.fixture
def begun(_half_a_run: Path) -> Begun:
    """Puts a run of ``EVEN`` that has come half the way onto a file system."""

    def put(mounted: FaultyMount) -> Path:
        shutil.copytree(_half_a_run, mounted.served / "run")
        return mounted.path / "run"

    return put
