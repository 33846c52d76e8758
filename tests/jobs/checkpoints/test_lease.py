"""Who has lost the run directory changes nothing in it any more, however late it wakes up.

Where there are no locks, a killed job is followed, and a living one is left alone.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from extended import extended
from workload import (
    EVEN,
    LONG,
    PreparedJob,
    Undisturbed,
    Workload,
    assert_refused,
    assert_whole,
    request_of,
    run_job,
    wait_for_checkpoints,
)

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.runtime.system.processes import is_alive, wait_all_ended
from holdfast.testing import JobRequest, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(240)]

WITHIN_S = 60.0


@pytest.mark.extended  # the tests beside it kill both
@pytest.mark.parametrize("name", ["holdfast-writer", extended("holdfast-w0")])
def test_process_that_stands_still_in_a_save_does_not_outlive_its_agent(
    tmp_path: Path, undisturbed: Undisturbed, name: str
) -> None:
    """The host's writer commits and prunes; it is stopped, or a worker, and the job is lost then.

    It is dead before another job can have the lease, so waking it up wakes nobody.
    """
    with start_job(request_of(EVEN, tmp_path, workers=2)) as first:
        assert first.wait().exit_code == 0
    longer = replace(EVEN, epochs=40)
    request = request_of(longer, tmp_path, workers=2, faults=["stop worker=0 step=20 site=save"])
    with start_job(request) as old:
        old.wait_for("fault", kind="stop")
        processes = old.processes()
        (stopped,) = [pid for pid, found in processes.items() if found == name]
        old.signal(signal.SIGSTOP, name)
        old.signal(signal.SIGKILL)
        old.signal(signal.SIGKILL, "holdfast-agent")
        assert wait_all_ended(processes, WITHIN_S) == ()
        assert not is_alive(stopped)
        died = time.monotonic()
        generation = max(record.get("generation", 0) for record in old.journal)
        left = CheckpointStore(tmp_path).steps()[0]

        job = run_job(request_of(longer, tmp_path, workers=2))

    assert_whole(job, longer, undisturbed(longer))
    savers = ("worker", "snapshot writer")
    late = [r for r in job.journal if r["now"] > died and r["source"].startswith(savers)]
    assert min(record.get("generation", generation + 1) for record in late) > generation
    # The save of step 20 is complete without the worker, so it may be committed before the end.
    assert left in {EVEN.steps, 20}
    assert [record["step"] for record in job.events("restored")] == [EVEN.steps, left]


NO_LOCKS = """
import errno, fcntl, os

def flock(descriptor, kind, flock=fcntl.flock):
    if os.readlink(f"/proc/self/fd/{descriptor}").endswith("/lease"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return flock(descriptor, kind)

fcntl.flock = flock
"""
"""Every Python of a job executes this first, as ``sitecustomize``."""

HASTY = """
from holdfast.runtime.run import lease
lease.LASTS_S = 3.0
"""
"""For a job that follows one whose processes are all dead: nobody renews that lease."""


@pytest.fixture
def without_locks(tmp_path: Path) -> Mapping[str, str]:
    """The environment of a host whose file system has no locks."""
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(NO_LOCKS)
    return {"PYTHONPATH": str(folder)}


def request(
    workload: Workload, run_dir: Path, environment: Mapping[str, str], *options: str
) -> JobRequest:
    """Return a job on two workers, on a host with this environment."""
    return request_of(workload, run_dir, workers=2, environment=environment, options=options)


def hasty(request: JobRequest) -> PreparedJob:
    return PreparedJob(**asdict(request), preparation=HASTY)


@pytest.mark.extended  # tests/runtime/run/test_lease.py has leases without locks
def test_job_that_is_killed_without_locks_is_followed_by_the_next_one(
    tmp_path: Path, undisturbed: Undisturbed, without_locks: Mapping[str, str]
) -> None:
    """Neither the death of its host nor that of its processes frees a lease without a lock."""
    run_dir = tmp_path / "run"
    with start_job(request(LONG, run_dir, without_locks)) as old:
        wait_for_checkpoints(old, 1)
        with start_job(request(LONG, run_dir, without_locks)) as rival:
            assert_refused(rival.wait(), 76, "which pid", "shows")
        processes = old.processes()
        old.signal(signal.SIGKILL)
        old.signal(signal.SIGKILL, "holdfast-agent")
        assert wait_all_ended(processes, WITHIN_S) == ()
        assert "no locks (flock)" in old.stderr

    with start_job(request(LONG, run_dir, without_locks)) as early:
        assert_refused(early.wait(), 76, "no locks", "60 s without a sign of life", "--wait-lease")
    job = run_job(hasty(request(LONG, run_dir, without_locks, "--wait-lease", "60")))

    assert_whole(job, LONG, undisturbed(LONG))
    assert "waiting for 60 s at most" in job.stderr
    assert job.events("restored")
    assert RunDirectory(run_dir).lease_owner().ended
