"""The saves of real jobs: by time, by ``auto``, and on request."""

from __future__ import annotations

import itertools
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from workload import Workload, request_of

from holdfast.testing import JobRun, RunningJob, start_job

pytestmark = pytest.mark.mpi

ENDLESS = Workload(
    microbatches=3, samples=160, global_batch=40, epochs=10**6, save_every=10**9, pause_ms=20
)
MAIN = "from holdfast.runtime.commands.main import main; main()"


def order_save(run_dir: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", MAIN, "save", str(run_dir), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def stop(job: RunningJob) -> JobRun:
    job.signal(signal.SIGTERM)
    ended = job.wait()
    assert ended.exit_code == 75, ended.stderr
    assert ended.report.checkpoints[-1].step == ended.events("stopped")[0]["step"]
    assert ended.leftovers == ()
    return ended


def wait_for_saves(job: RunningJob, count: int, after: float = 0.0) -> list[float]:
    """Wait until so many checkpoints were begun after a moment; return when they were."""
    while True:
        records = job.journal
        saves = [record for record in records if record["event"] == "checkpoint"]
        begins = [record["now"] - record["seconds"] for record in saves]
        found = [begin for begin in begins if begin > after]
        if len(found) >= count:
            return found
        steps = [record["step"] for record in records if record["event"] == "step"]
        job.wait_for("step", step=max(steps, default=0) + 1)


@pytest.mark.extended  # tests/runtime/saving/test_save_clock.py has the clock
def test_time_passes_between_saves_and_goes_on_when_rank_0_dies(tmp_path: Path) -> None:
    options = ["--save-every", "2s"]
    with start_job(request_of(ENDLESS, tmp_path, workers=3, options=options)) as job:
        before = wait_for_saves(job, 2)
        job.signal(signal.SIGKILL, "holdfast-w0")
        recovery = job.wait_for("recovery")
        after = wait_for_saves(job, 3, after=recovery["now"])
        stop(job)

    for begins in (before, after[1:]):  # a save that the death has cut off is begun again
        # The copy of the state stands between the clock and the record.
        assert all(late - early > 1.0 for early, late in itertools.pairwise(begins)), begins


@pytest.mark.extended  # test_orders.py has the order, test_initial_weights.py the new start
def test_order_is_carried_out_and_the_run_goes_on_from_it(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    with start_job(request_of(ENDLESS, run_dir, workers=3)) as job:
        asked_at = job.wait_for("step", step=3)["now"]
        first = order_save(run_dir)
        second = order_save(run_dir)
        quiet = order_save(run_dir, "--no-wait")
        copy = shutil.copytree(run_dir / "checkpoints", tmp_path / "copy")
        saves = [record for record in job.journal if record["event"] == "checkpoint"]
        stop(job)
    late = order_save(run_dir)

    assert (first.returncode, second.returncode, quiet.returncode) == (0, 0, 0), first.stderr
    steps = [int(order.stdout.split()[2]) for order in (first, second)]
    assert steps[0] < steps[1]
    assert steps == [record["step"] for record in saves][:2]
    assert all(record["now"] - record["seconds"] > asked_at for record in saves)
    assert {f"step-{step:012d}" for step in steps} <= {path.name for path in copy.iterdir()}
    assert quiet.stdout == "asked for a checkpoint\n"
    assert late.returncode == 75
    assert late.stderr.startswith("holdfast: error: no job runs in ")


@pytest.mark.extended
def test_order_at_the_very_beginning_ends_nothing(tmp_path: Path) -> None:
    """There is no head yet when the lease is taken.

    Above, an order comes later.
    """
    with start_job(request_of(ENDLESS, tmp_path, workers=2)) as job:
        order = order_save(tmp_path)
        while order.returncode == 75:  # not even the lease is taken yet
            order = order_save(tmp_path)
        assert order.returncode == 0, order.stderr
        job.wait_for("step", step=int(order.stdout.split()[2]) + 1)
        stop(job)
