"""Every process of a job, struck in every way at every moment: what must come of it.

A cell is a victim, a strike and a moment.  Whatever the cell, the run ends with the bytes of
the undisturbed one and leaves nothing behind.  Cells differ in the exit code alone, and in
whether ``holdfast run`` has to be typed again:

* SIGTERM to client or agent is an order to stop with a checkpoint, or at once while the
  workers start: 75, and the next job ends the run.
* Without its client a job trains on, and the next ``holdfast run`` takes it over.  Before
  the first launch there is nothing to take over, and it starts.
* Everything else is survived by the job itself: 0.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass, replace
from enum import Enum
from itertools import product
from pathlib import Path

from workload import Undisturbed, Workload, request_of

from holdfast.runtime.tools.strike import PROCESSES, SIGNALS, Kind, Target
from holdfast.runtime.tools.striker import find_victims
from holdfast.testing import JobRequest, JobRun, RunningJob, start_job

WORKERS = 3
VICTIM = 1
"""The worker that is struck, and whose guard is struck."""
LIMIT_S = 2
"""``--heartbeat-timeout`` of these jobs."""
TRAINED = Workload(
    microbatches=6, samples=160, global_batch=40, epochs=30, save_every=4, pause_ms=20
)
_NUMBERS = {Target.WORKER: VICTIM, Target.GUARD: VICTIM}
_BOUND_S = 90.0
_LOOK_S = 0.01


class Moment(Enum):
    """What the job is doing then."""

    STARTING = "starting"
    TRAINING = "training"
    REPAIR = "repair"
    SAVE = "save"
    ENDING = "ending"


@dataclass(frozen=True)
class Cell:
    """One case of the matrix."""

    victim: Target
    strike: Kind
    moment: Moment

    def __str__(self) -> str:
        """Name the cell in a line of output."""
        return f"{self.strike.value} {self.victim.value} {self.moment.value}"


_KINDS = (Kind.KILL, Kind.STOP, Kind.STOP_CONT, Kind.TERM)
CELLS = tuple(Cell(*cell) for cell in product(PROCESSES, _KINDS, Moment))


def run_cell(cell: Cell, folder: Path, undisturbed: Undisturbed) -> float:
    """Run a cell; return the seconds from the strike to the end of the run.

    Raises:
        AssertionError: something else came of it than must come.
    """
    request = _request(folder)
    with start_job(request, timeout_s=_BOUND_S) as job:
        _wait_for(cell.moment, job)
        struck = time.monotonic()
        _strike(cell, job)
        (folder / "go").touch()
        ended = _end(cell, job, request)
    seconds = time.monotonic() - struck
    assert ended.exit_code == 0, f"{cell}: exit {ended.exit_code}\n{ended.stderr}"
    assert ended.sha256 == undisturbed(TRAINED), f"{cell}: other bytes\n{ended.stderr}"
    assert all(epoch.exact for epoch in ended.report.epochs), f"{cell}: a sample is missing"
    assert ended.leftovers == (), f"{cell}: {ended.leftovers}"
    return seconds


def _request(folder: Path) -> JobRequest:
    options = ["--heartbeat-timeout", str(LIMIT_S), "--max-restarts", "4"]
    plain = request_of(TRAINED, folder / "run", workers=WORKERS, options=options)
    argv = [*plain.argv, "--linger", str(folder / "go")]
    return replace(plain, argv=argv)


def _wait_for(moment: Moment, job: RunningJob) -> None:
    if moment is Moment.STARTING:
        job.wait_for("launch")
        _find(job, Target.WRITER, 0)  # the youngest of the helpers
    elif moment is Moment.SAVE:
        job.wait_for("checkpoint")
    elif moment is Moment.ENDING:
        job.wait_for("completed")
    else:
        job.wait_for("step", step=6)
    if moment is Moment.REPAIR:
        os.kill(_find(job, Target.WORKER, 2), signal.SIGKILL)


def _strike(cell: Cell, job: RunningJob) -> None:
    pid = _find(job, cell.victim, _NUMBERS.get(cell.victim, 0))
    waking = [signal.SIGCONT] if cell.strike is Kind.STOP_CONT else []
    for number in (SIGNALS[cell.strike], *waking):
        os.kill(pid, number)


def _end(cell: Cell, job: RunningJob, request: JobRequest) -> JobRun:
    """Return the end of the run, for which another ``holdfast run`` may be needed."""
    if cell.victim is Target.CLIENT and cell.strike in (Kind.KILL, Kind.STOP):
        return _succeeded(cell, job, request)
    ended = job.wait()
    if cell.strike is Kind.TERM and cell.victim in (Target.CLIENT, Target.AGENT):
        expected = (0,) if cell.moment is Moment.ENDING else (75, 0)
        assert ended.exit_code in expected, f"{cell}: exit {ended.exit_code}\n{ended.stderr}"
        if ended.exit_code == 75:
            return _run(request)
    return ended


def _succeeded(cell: Cell, job: RunningJob, request: JobRequest) -> JobRun:
    """Go on with a job whose client is gone, or stands still."""
    deadline = time.monotonic() + _BOUND_S
    while True:
        ended = _run(request)
        if ended.exit_code != 76:
            break
        # The agent has yet to notice that its client stands still.
        assert time.monotonic() < deadline, f"{cell}: still owned\n{ended.stderr}"
    if cell.strike is Kind.STOP and job.processes():
        job.signal(signal.SIGCONT)
    first = job.wait()
    assert first.exit_code in (-signal.SIGKILL, 0), f"{cell}: {first.exit_code}\n{first.stderr}"
    assert first.leftovers == (), f"{cell}: {first.leftovers}"
    return ended


def _run(request: JobRequest) -> JobRun:
    with start_job(request, timeout_s=_BOUND_S) as job:
        return job.wait()


def _find(job: RunningJob, victim: Target, number: int) -> int:
    """Return the process of the job with this worker id or rank, waiting until there is one."""
    deadline = time.monotonic() + _BOUND_S
    while time.monotonic() < deadline:
        found = find_victims(victim, job.processes(), job.pid)
        if number in found:
            return found[number]
        time.sleep(_LOOK_S)
    raise TimeoutError(f"no {victim.value} {number} among {job.processes()}")
