"""The saves of real jobs that are asked for."""

from __future__ import annotations

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
