"""Servers that take their time, or hang in one call: training goes on, and the end has a bound."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest
from extended import extended
from faults import Rule
from faulty_mount import FaultyMount, faulty_mount, needs_a_server
from half_a_run import HALF, STORE
from workload import EVEN, LONG, Undisturbed, assert_whole, request_of

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import ExitCode
from holdfast.testing import JobRequest, RunningJob, start_job

pytestmark = [pytest.mark.mpi, needs_a_server]

ENDS_WITHIN_S = 420.0
"""A writer has 60 s for a save, and its successor for the next one: one in the middle of the
training, three of the last step, and what is tried once more when the workers have ended."""
WORKERS = 2
STEPS = 40
EVERY_CALL = (
    *("getattr", "opendir", "readdir", "open", "read", "flush", "statfs"),
    *("mkdir", "create", "fallocate", "write", "fsync", "fsyncdir", "rename", "unlink", "rmdir"),
)
HANGING = ("fsync", "rename", "create", "mkdir", "write", "fsyncdir", "open")


def _request(faulty: FaultyMount, trace: Path) -> JobRequest:
    plain = request_of(LONG, faulty.path / "run", workers=WORKERS)
    return replace(plain, argv=[*plain.argv, "--trace", str(trace)])


def _train_on(running: RunningJob, trace: Path) -> None:
    """Wait for so many more steps of all workers."""
    enough = trace.read_bytes().count(b"\n") + STEPS * WORKERS
    while trace.read_bytes().count(b"\n") < enough:
        assert running.processes(), running.stderr


@pytest.mark.parametrize("delay_s", [extended(0.005), extended(0.05)])
def test_slow_server_costs_time_and_nothing_else(
    delay_s: float, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Names and attributes are remembered for some seconds, as by a client of NFS."""
    with faulty_mount(tmp_path, remembers_s=5.0) as mounted:
        mounted.set(Rule(EVERY_CALL, delay_s=delay_s))
        for workload in (HALF, EVEN):
            with start_job(request_of(workload, mounted.path / "run", workers=WORKERS)) as running:
                job = running.wait()

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert [record["step"] for record in job.events("restored")] == [HALF.steps]
    assert job.events("checkpoint_failed") == []
    assert job.report.failures == ()


@pytest.mark.parametrize("call", [extended(call) for call in HANGING])
def test_training_goes_on_beside_a_save_that_hangs(
    call: str, faulty: FaultyMount, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    trace = tmp_path / "trace"
    with start_job(_request(faulty, trace)) as running:
        running.wait_for("checkpoint")
        with faulty.under(Rule((call,), paths=STORE, hangs=True)):
            faulty.wait_struck()
            _train_on(running, trace)
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert job.report.failures == ()
    assert CheckpointStore(faulty.served / "run").steps()[0] == LONG.steps


@pytest.mark.parametrize("call", [extended("fsync"), extended("rename")])
def test_job_ends_although_every_save_hangs_for_ever(
    call: str, faulty: FaultyMount, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A process that hangs in the kernel is gone as soon as the server answers."""
    with start_job(_request(faulty, tmp_path / "trace"), timeout_s=2 * ENDS_WITHIN_S) as running:
        running.wait_for("checkpoint")
        with faulty.under(Rule((call,), paths=STORE, hangs=True)):
            until = time.monotonic() + ENDS_WITHIN_S
            while running.pid in running.processes():
                assert time.monotonic() < until, running.stderr
                time.sleep(0.05)
        ended = running.wait()
    kept = CheckpointStore(faulty.served / "run").steps()[0]
    with start_job(_request(faulty, tmp_path / "trace")) as running:
        job = running.wait()

    assert ended.exit_code == ExitCode.STOPPED_EARLY, ended.stderr
    assert "makes no progress: the disk hangs" in ended.stderr
    assert f"the checkpoint of step {LONG.steps} could not be written" in ended.stderr
    assert ended.report.steps == LONG.steps
    assert ended.leftovers == ()
    assert 0 < kept < LONG.steps
    assert (job.exit_code, job.sha256) == (0, undisturbed(LONG))
