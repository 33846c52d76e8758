"""What tests of this folder share: connections, and the two sides of a worker's status."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from holdfast.runtime.system.channel import Channel, LineChannel, pair
from holdfast.runtime.system.worker_status import WorkerStatus


@pytest.fixture(params=["unix", "pipes"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[LineChannel, LineChannel]]:
    """The two ends of a connection, over a Unix socket or over two pipes."""
    left, right = pair() if request.param == "unix" else _over_pipes()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def unix_ends() -> Iterator[tuple[Channel, Channel]]:
    """The two ends of a connection that carries descriptors, too."""
    left, right = pair()
    yield left, right
    left.close()
    right.close()


@pytest.fixture
def sides() -> Iterator[tuple[WorkerStatus, WorkerStatus]]:
    """One status as its agent and as its worker sees it."""
    agent = WorkerStatus.create()
    worker = WorkerStatus(os.dup(agent.fd))
    yield agent, worker
    agent.close()
    worker.close()


def _over_pipes() -> tuple[LineChannel, LineChannel]:
    (left_reads, right_writes), (right_reads, left_writes) = os.pipe(), os.pipe()
    return LineChannel(left_reads, left_writes), LineChannel(right_reads, right_writes)
