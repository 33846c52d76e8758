"""Batch jobs of holdfast on a test's cluster: submitted, watched and stopped."""

from __future__ import annotations

import shlex
import subprocess
import sys
import uuid
from dataclasses import replace
from pathlib import Path

from slurm import SlurmCluster
from workload import LONG, Workload, request_of

from holdfast.runtime.run.journal import Record, read_journal

HOLDFAST = Path(sys.executable).parent / "holdfast"
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL")


class BatchRun:
    """One run directory, and the jobs that train in it."""

    def __init__(self, cluster: SlurmCluster, directory: Path, *, pause_ms: int) -> None:
        self._cluster = cluster
        self.workload: Workload = replace(LONG, pause_ms=pause_ms)
        self.run_dir = directory / "run"
        self._log = directory / "log.txt"

    @property
    def command(self) -> list[str]:
        """``run``, its options and its script, as after ``holdfast``; without workers."""
        request = request_of(self.workload, self.run_dir, workers=1)
        options = ["--run-dir", str(self.run_dir), "--microbatches", str(request.microbatches)]
        return ["run", *options, *request.options, *self.script]

    @property
    def script(self) -> list[str]:
        """The script with its arguments."""
        request = request_of(self.workload, self.run_dir, workers=1)
        return [str(request.script), *request.argv]

    @property
    def log(self) -> str:
        """What all jobs have written by now."""
        return self._log.read_text() if self._log.exists() else ""

    def sbatch(self, *options: str, chain: int | None = None, requeue: bool = True) -> list[int]:
        """Submit a job that comes back, or a chain, as docs/hpc.md does; return the jobs' ids."""
        terms = ["--requeue", "--no-kill", "--open-mode=append"]
        terms += [f"--job-name={self.run_dir.parent.name}"]
        run, *rest = self.command
        flags = [] if requeue else ["--no-requeue"]
        if chain is not None:
            terms += ["--dependency=singleton", f"--export=ALL,HOLDFAST_CHAIN={uuid.uuid4()}"]
            flags = ["--no-requeue", "--wait-lease", "120"]
        script = f"#!/bin/bash\nexec {shlex.join([str(HOLDFAST), run, *flags, *rest])}\n"
        return [self.submit(script, *terms, *options) for _ in range(chain or 1)]

    def submit(self, script: str, *options: str) -> int:
        """Submit a script of the user's own."""
        path = self._log.with_name("job.sh")
        path.write_text(script)
        command = ["sbatch", "--parsable", "-o", str(self._log), *options, str(path)]
        return int(self._cluster.call(*command, env={}))

    def events(self, name: str) -> list[Record]:
        """Return the journal's records of one kind by now."""
        try:
            return [record for record in read_journal(self.run_dir / "journal.jsonl")
                    if record["event"] == name]  # fmt: skip
        except OSError:
            return []

    def wait_for_checkpoint(self, incarnation: int) -> None:
        """Wait until an incarnation, counted from 1, has saved a step."""

        def has_saved() -> bool:
            starts = self.events("job_started")
            saves = self.events("checkpoint")
            return len(starts) >= incarnation and any(
                save["now"] > starts[incarnation - 1]["now"] for save in saves
            )

        self._cluster.wait(has_saved, f"checkpoint of incarnation {incarnation}; {self.log}")

    def wait_for_end(self, job: int, within_s: float = 120.0) -> dict[str, str]:
        """Return what Slurm says of a job that has ended, without Slurm's delay of a requeue."""

        hurried: set[str] = set()

        def has_ended() -> bool:
            facts = self._cluster.facts(job)
            is_requeued = (facts["JobState"], facts["Reason"]) == ("PENDING", "BeginTime")
            if is_requeued and facts["Restarts"] not in hurried and self._begin_soon(job):
                hurried.add(facts["Restarts"])
            return facts["JobState"] in ENDED

        self._cluster.wait(has_ended, f"end of {job}", within_s)
        return self._cluster.facts(job)

    def wait_for_requeue(self, job: int, restarts: int, within_s: float = 120.0) -> None:
        """Wait until a job was requeued so often; it begins again soon, not in 2 minutes."""

        def is_requeued() -> bool:
            facts = self._cluster.facts(job)
            is_pending = facts["JobState"] == "PENDING"
            return int(facts["Restarts"]) >= restarts and is_pending and self._begin_soon(job)

        self._cluster.wait(is_requeued, f"requeue {restarts} of {job}; {self.log}", within_s)

    def _begin_soon(self, job: int) -> bool:
        """Return whether the job's last incarnation has ended and Slurm begins the next.

        Slurm waits for two minutes, so that no late message of one incarnation is taken for
        the next one's.  Here the end of the last step takes the place of that time, and the
        next second: slurmd launches nothing in the second of a kill.
        """
        if self._cluster.has_steps(job):
            return False
        try:
            self._cluster.call("scontrol", "update", f"JobId={job}", "StartTime=now+2")
        except subprocess.SubprocessError:
            return False
        return True
