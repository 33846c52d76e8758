"""Servers that take their time, or hang: training goes on, and every wait has a bound."""

from __future__ import annotations

import subprocess
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from extended import extended
from faults import Rule
from faulty_mount import FaultyMount, faulty_mount, needs_a_server
from half_a_run import HALF, STORE, Begun
from workload import EVEN, LONG, PreparedJob, Undisturbed, assert_whole, request_of, run_job

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
HANGING = {
    call: Rule((call,), paths=STORE, hangs=True)
    for call in ("fsync", "rename", "create", "mkdir", "write", "fsyncdir", "open")
}
HEARTBEAT_TIMEOUT_S = 2.0
IMPATIENT = """
from holdfast.runtime.run import files
files.TELLS_AFTER_S, files.GIVES_UP_AFTER_S = 0.2, 0.5
"""


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
            job = run_job(request_of(workload, mounted.path / "run", workers=WORKERS))

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert [record["step"] for record in job.events("restored")] == [HALF.steps]
    assert job.events("checkpoint_failed") == []
    assert job.report.failures == ()


@pytest.mark.parametrize(
    "rule",
    [*map(extended, HANGING.values()), extended(Rule(EVERY_CALL, hangs=True))],
    ids=[*HANGING, "the whole run directory"],
)
def test_training_goes_on_beside_a_save_that_hangs(
    rule: Rule, faulty: FaultyMount, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """Saves and journal wait for it, and nobody takes a healthy worker for a dead one."""
    trace = tmp_path / "trace"
    with start_job(_request(faulty, trace)) as running:
        running.wait_for("checkpoint")
        with faulty.under(rule):
            faulty.wait_struck()
            _train_on(running, trace)
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    assert job.report.failures == ()
    assert [step["step"] for step in job.events("step")] == list(range(1, LONG.steps + 1))
    assert CheckpointStore(faulty.served / "run").steps()[0] == LONG.steps


@pytest.mark.parametrize("call", [extended("fsync"), extended("rename")])
def test_job_ends_although_every_save_hangs_for_ever(
    call: str, faulty: FaultyMount, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    """A process that hangs in the kernel is gone as soon as the server answers."""
    with start_job(_request(faulty, tmp_path / "trace"), timeout_s=2 * ENDS_WITHIN_S) as running:
        running.wait_for("checkpoint")
        with faulty.under(HANGING[call]):
            until = time.monotonic() + ENDS_WITHIN_S
            while running.pid in running.processes():
                assert time.monotonic() < until, running.stderr
                time.sleep(0.05)
        ended = running.wait()
    kept = CheckpointStore(faulty.served / "run").steps()[0]
    job = run_job(_request(faulty, tmp_path / "trace"))

    assert ended.exit_code == ExitCode.STOPPED_EARLY, ended.stderr
    assert "makes no progress: the disk hangs" in ended.stderr
    assert f"the checkpoint of step {LONG.steps} could not be written" in ended.stderr
    assert ended.report.steps == LONG.steps
    assert ended.leftovers == ()
    assert 0 < kept < LONG.steps
    assert (job.exit_code, job.sha256) == (0, undisturbed(LONG))


@pytest.mark.extended  # a save that hangs is waited for above
def test_worker_that_reads_from_a_server_that_hangs_is_waited_for(
    faulty: FaultyMount, begun: Begun, undisturbed: Undisturbed
) -> None:
    """A hang of several heartbeat timeouts costs its own time: no worker and no checkpoint."""
    limit = ["--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S)]
    request = request_of(EVEN, begun(faulty), workers=WORKERS, options=limit)
    hang = Rule(("read",), paths="*/step-*/shard-*", hangs=True)
    with faulty.under(hang), start_job(request) as running:
        faulty.wait_struck()
        time.sleep(3 * HEARTBEAT_TIMEOUT_S)  # the hang that is outlived
        faulty.set()
        job = running.wait()

    assert_whole(job, EVEN, undisturbed(EVEN))
    assert job.report.failures == ()
    assert job.report.relaunches == ()
    assert [record["step"] for record in job.events("restored")] == [HALF.steps]


def test_run_directory_that_does_not_answer_is_told_of_and_given_up(faulty: FaultyMount) -> None:
    plain = request_of(LONG, faulty.path / "run", workers=WORKERS)
    request = PreparedJob(**asdict(plain), preparation=IMPATIENT)
    with faulty.stopped():
        done = subprocess.run(request.command(), capture_output=True, text=True, check=False)

    assert done.returncode == ExitCode.STOPPED_EARLY
    assert f"run directory {faulty.path / 'run'} has not answered" in done.stderr
    assert "nothing is known to be damaged" in done.stderr
