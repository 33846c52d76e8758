"""Two runs in one directory: somebody removed it while the first job lived without a supervisor."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.run_directory import RunDirectory
from holdfast.testing import start_job

pytestmark = pytest.mark.mpi


def test_job_whose_directory_another_run_has_taken_leaves_that_run_alone(
    tmp_path: Path, undisturbed: Undisturbed
) -> None:
    run_dir = tmp_path / "run"
    request = request_of(LONG, run_dir, workers=2)
    with start_job(request) as first:
        first.wait_for("checkpoint")
        os.kill(first.pid, signal.SIGKILL)
        theirs = [pid for pid in first.processes() if pid != first.pid]
        _signal(theirs, signal.SIGSTOP)  # it writes nothing before the next run has begun
        shutil.rmtree(run_dir)
        with start_job(request) as running:
            running.wait_for("launch")
            _signal(theirs, signal.SIGCONT)
            second = running.wait()

        assert_whole(second, LONG, undisturbed(LONG))
        while first.processes():
            pass  # it cannot save its last step, and ends

    record = RunDirectory(run_dir).load_record()
    assert record is not None
    store = CheckpointStore(run_dir)
    assert {store.scan(step).manifest().run_id for step in store.steps()} == {record.run_id}
    assert store.steps()[0] == LONG.steps


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        os.kill(pid, number)
