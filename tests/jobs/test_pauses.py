"""A job whose processes are all paused for a while, and woken in any order.

A batch system, a closed lid or a frozen cgroup does that to a job.  Nobody is accused of it.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from pathlib import Path

import pytest
from extended import extended
from workload import LONG, Undisturbed, assert_whole, request_of

from holdfast.testing import RunningJob, start_job

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(120)]

PAUSE_S = 6.5
"""Longer than all that this job's client and head allow each other, and its workers."""


def let_pass(seconds: float) -> None:
    select.select([], [], [], seconds)


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        os.kill(pid, number)


def pause(running: RunningJob, first: set[str]) -> None:
    """Stop all processes, and wake those with the names of ``first`` a second before the rest."""
    paused: dict[int, str] = {}
    while paused.keys() != running.processes().keys():  # one may have been forked meanwhile
        paused = running.processes()
        send(signal.SIGSTOP, paused)
    let_pass(PAUSE_S)
    early = [pid for pid, name in paused.items() if name in first]
    send(signal.SIGCONT, early)
    let_pass(1.0)
    send(signal.SIGCONT, paused.keys() - set(early))


@pytest.mark.extended  # test_detector.py has the pauses
@pytest.mark.parametrize(
    "first",
    [
        pytest.param({"holdfast", "holdfast-agent"}, id="watchers first"),
        extended({"holdfast-w0", "holdfast-w1", "holdfast-writer"}, id="watched first"),
    ],
)
def test_pause_of_the_whole_job_is_one_line_and_a_part_of_its_time_and_accuses_nobody(
    tmp_path: Path, undisturbed: Undisturbed, first: set[str]
) -> None:
    options = ["--heartbeat-timeout", "2.5"]

    with start_job(request_of(LONG, tmp_path, workers=2, options=options)) as running:
        running.wait_for("step", step=20)
        pause(running, first)
        job = running.wait()

    assert_whole(job, LONG, undisturbed(LONG))
    told = [line for line in job.stderr.splitlines() if "stood still" in line]
    assert len(told) == 1, job.stderr
    (kept,) = [record for record in job.journal if record["event"] == "paused"]
    assert kept["seconds"] >= PAUSE_S
    assert job.report.paused_s == pytest.approx(kept["seconds"], abs=0.001)
    assert job.report.failures == ()
    assert [r for r in job.journal if r["event"] in ("checkpoint_failed", "relaunch")] == []
