"""128 workers on one host, and the limit of open files that users usually have."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from agent_harness import agent_running, assert_ended

pytestmark = pytest.mark.process

WORKERS = 128


@contextmanager
def files_limited_to(count: int) -> Iterator[None]:
    """Give the processes that are started meanwhile a soft limit of open files."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_agent_hosts_128_workers_whose_user_may_open_256_files(tmp_path: Path) -> None:
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with files_limited_to(256), agent_running(tmp_path) as harness:
        harness.launch(range(WORKERS), "wait")
        guards = [harness.guard(rank) for rank in range(WORKERS)]
        pids = [harness.wait_for_report(worker, "joined")["pid"] for worker in range(WORKERS)]

        of_agent = resource.prlimit(harness.process.pid, resource.RLIMIT_NOFILE)
        of_worker = resource.prlimit(pids[-1], resource.RLIMIT_NOFILE)

    assert of_agent == (usual, usual)
    assert of_worker == (256 + 4 * WORKERS, usual)
    assert_ended(*pids, *(guard.pid for guard in guards))


def test_launch_that_needs_more_files_than_there_may_be_ends_with_its_reason(
    tmp_path: Path,
) -> None:
    with agent_running(tmp_path) as harness:
        harness.wait_for("warm")
        resource.prlimit(harness.process.pid, resource.RLIMIT_NOFILE, (100, 100))
        harness.launch(range(WORKERS), "wait")

        ended = harness.wait_for("launch_ended", generation=1)

        assert "128 workers cannot be made" in ended["words"]
        assert "Too many open files" in ended["words"]
        while len(os.listdir(f"/proc/{harness.process.pid}/fd")) > 90:
            harness.events.clear()
            harness.send("request", what="unknown")
            harness.wait_for("refused")
        harness.launch([1], "leave", generation=2)
        harness.guard(0, generation=2)
        harness.wait_for("worker_exited", worker=1, generation=2, clean=True)
