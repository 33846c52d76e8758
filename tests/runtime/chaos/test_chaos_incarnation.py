from __future__ import annotations

import sys
from pathlib import Path

import pytest

from holdfast.runtime.chaos.incarnation import Incarnation
from holdfast.runtime.chaos.job_traces import JobTraces

pytestmark = pytest.mark.process

_SHOW = "import os; [print(f'{n}={v}') for n, v in sorted(os.environ.items())]"


def test_job_of_chaos_is_alone_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a batch job it would have that job requeued, and `fresh` would begin it anew."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("JOB_ID", "7")
    monkeypatch.setenv("HOLDFAST_CHAIN", "train-1")
    monkeypatch.setenv("HOLDFAST_SEED", "5")
    traces = JobTraces("HOLDFAST_TEST_CHAOS")

    job = Incarnation([sys.executable, "-c", _SHOW], traces, tmp_path)
    job.reap()
    job.stderr.close()

    said = (tmp_path / "stdout.txt").read_text().splitlines()
    assert not [line for line in said if line.startswith(("SLURM_", "JOB_ID", "HOLDFAST_CHAIN"))]
    assert {"HOLDFAST_FRESH=no", "HOLDFAST_SEED=5", traces.mark} <= set(said)
    traces.remove_files([job.pid])
