"""What the jobs of these tests train, and what must hold at the end of every one of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from holdfast.recovery.fault import parse_fault
from holdfast.testing import JobRequest, JobRun, RunningJob, start_job

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "02_custom_replica.py"
_PACED = Path(__file__).resolve().parents[1] / "jobs" / "scripts" / "paced.py"


@dataclass(frozen=True)
class Workload:
    """Everything that the final bytes depend on."""

    microbatches: int
    samples: int
    global_batch: int
    epochs: int
    save_every: int = 5
    features: int = 32
    pause_ms: int = 0
    """How long a step takes at least; the bytes do not depend on it."""

    @property
    def steps(self) -> int:
        return self.epochs * -(-self.samples // self.global_batch)

    @property
    def argv(self) -> list[str]:
        return [
            *("--samples", str(self.samples), "--global-batch", str(self.global_batch)),
            *("--epochs", str(self.epochs), "--save-every", str(self.save_every)),
            *("--features", str(self.features)),
            *(("--pause-ms", str(self.pause_ms)) if self.pause_ms else ()),
        ]


Undisturbed = Callable[[Workload], str]
"""Gives the digest that a workload must end with."""

EVEN = Workload(microbatches=4, samples=160, global_batch=40, epochs=4)
UNEVEN = Workload(microbatches=7, samples=173, global_batch=25, epochs=3)
"""Nothing divides anything: 7 microbatches, batches of 25, a last one of 23, 3 or 4 to a part."""
SLICED = Workload(microbatches=7, samples=173, global_batch=25, epochs=3, features=2000)
"""Long enough vectors for the exchange in slices."""
LONG = Workload(microbatches=7, samples=173, global_batch=25, epochs=30, pause_ms=20)
"""Takes 4 seconds at least, so that something can be done to a job in the middle of it."""


def request_of(
    workload: Workload,
    run_dir: Path,
    *,
    workers: int,
    faults: Sequence[str] = (),
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> JobRequest:
    """Return the job that trains ``workload`` in ``run_dir``."""
    return JobRequest(
        script=_PACED if workload.pause_ms else SCRIPT,
        run_dir=run_dir,
        workers=workers,
        microbatches=workload.microbatches,
        faults=faults,
        argv=workload.argv,
        options=["--threads", "1", "--regrow", "never", *options],
        environment=environment or {},
    )


def run_job(request: JobRequest, **bound: float) -> JobRun:
    """Run a job to its end."""
    with start_job(request, **bound) as running:
        return running.wait()


def remembering(new_folder: Callable[[str], Path]) -> Undisturbed:
    """Return what runs each workload once, on one worker to whom nothing happens."""
    known: dict[Workload, str] = {}

    def sha256(workload: Workload) -> str:
        workload = replace(workload, pause_ms=0)  # no pause changes a byte
        if workload not in known:
            with start_job(request_of(workload, new_folder("undisturbed"), workers=1)) as running:
                job = running.wait()
            assert job.exit_code == 0, job.stderr
            assert job.sha256 is not None
            known[workload] = job.sha256
        return known[workload]

    return sha256


IMPATIENT = """
from holdfast.runtime.head import living_job
living_job.SHOWS_WITHIN_S = 3.0
"""
"""For a client that asks a head which is stopped: no machine is so slow that it would answer."""


@dataclass(frozen=True, kw_only=True)
class PreparedJob(JobRequest):
    """A job whose client executes ``preparation`` first."""

    preparation: str

    def command(self) -> list[str]:
        """Return the command line."""
        command = JobRequest.command(self)
        command[2] = self.preparation + command[2]
        return command


def wait_for_checkpoints(job: RunningJob, count: int) -> None:
    """Wait until so many steps are saved; which ones these are depends on the disk."""
    while len({r["step"] for r in job.journal if r["event"] == "checkpoint"}) < count:
        assert job.processes(), job.stderr
        time.sleep(0.02)


def assert_whole(job: JobRun, workload: Workload, sha256: str) -> None:
    """The run is complete, with these bytes and every sample once, and nothing is left."""
    assert not list(complaints_of(job, workload, sha256)), job.stderr


def complaints_of(job: JobRun, workload: Workload, sha256: str) -> Iterator[str]:
    """Yield a sentence for each thing that must hold at the end of a run and does not."""
    yield from (f"left behind: {what}" for what in job.leftovers)
    if job.exit_code != 0:
        yield f"exit code {job.exit_code}: {job.stderr}"
        return
    report = job.report
    if job.sha256 != sha256:
        yield f"wrong bytes: {job.sha256} instead of {sha256}"
    found = [(epoch.epoch, epoch.samples, epoch.exact) for epoch in report.epochs]
    wanted = [(number, workload.samples, True) for number in range(1, workload.epochs + 1)]
    if (report.steps, found) != (workload.steps, wanted):
        yield f"not every sample once: {report.steps} steps, epochs {report.epochs}"


def assert_struck(job: JobRun, faults: Sequence[str]) -> None:
    """Every planned fault struck, and no worker died of another cause."""
    planned = {str(parse_fault(fault)) for fault in faults}
    struck = {
        f"{fault.kind} worker={fault.worker} step={fault.step} site={fault.site}"
        f" attempt={fault.attempt}"
        for fault in job.report.faults
    }
    assert struck == planned, job.stderr
    victims = sorted(parse_fault(fault).worker for fault in faults)
    assert sorted(failure.worker for failure in job.report.failures) == victims, job.stderr


def assert_refused(job: JobRun, exit_code: int, *words: str) -> None:
    """One line names the fault with these words; no traceback, nothing left behind."""
    errors = [line for line in job.stderr.splitlines() if "error: " in line.lower()]
    assert job.exit_code == exit_code, job.stderr
    assert len(errors) == 1, job.stderr
    assert [word for word in words if word not in errors[0]] == []
    assert "Traceback" not in job.stderr
    assert job.leftovers == ()


def listeners_of(running: RunningJob) -> tuple[set[str], set[tuple[str, str]]]:
    """Return the names of a job's processes, and each that listens with its address."""
    processes = running.processes()
    listening = {
        (processes[found.pid], found.laddr.ip)
        for found in psutil.net_connections("tcp")
        if found.status == psutil.CONN_LISTEN and found.pid in processes and found.laddr
    }
    return set(processes.values()), listening
