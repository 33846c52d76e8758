"""A job takes its run directory: lease, record and journal.

Either the directory is new, or a job that was killed has left its lease, a checkpoint and a
line of the journal that is torn.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from job import RUN_ID, save_step
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion

from holdfast.checkpoint.errors import CheckpointError, CommitRefused
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import JobError, RunDirectoryBusy
from holdfast.runtime.head.job_setup import open_journal
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.options.run_terms import open_or_create_record
from holdfast.runtime.run.events import LaunchBegan
from holdfast.runtime.run.journal import Journal, next_generation, read_journal
from holdfast.runtime.run.lease import LASTS_S, Lease
from holdfast.runtime.run.program import Program
from holdfast.runtime.run.run_directory import (
    FORMAT,
    DirectoryLost,
    Ownership,
    RunDirectory,
    RunRecord,
)
from holdfast.runtime.system.witnessed_time import Stillness

OLD, NEW, NEXT = 10, 20, 30
LINES = 4
_TORN = b'{"event": "step", "step'


@dataclass(frozen=True, slots=True)
class Job:
    """A job that has taken its directory."""

    directory: RunDirectory
    lease: Lease
    record: RunRecord
    journal: Journal
    generation: int

    @property
    def claim(self) -> Ownership:
        """The job's proof that the directory is its own."""
        return Ownership(self.directory.path, self.record.run_id, self.lease.token)


def take(directory: RunDirectory, watch: Stillness | None = None) -> Job:
    """Take a directory in the order of a client; raises ``JobError``."""
    directory.prepare()
    lease = directory.acquire_lease(watch=watch)
    try:
        options = JobOptions(script=Path("train.py"), run_dir=directory.path)
        record, _ = open_or_create_record(directory, options, Program.of(options.script))
        generation = next_generation(directory)
        return Job(directory, lease, record, open_journal(directory, record.run_id), generation)
    except JobError:
        lease.release()  # a process that is refused ends
        raise


class Begin:
    """The client's work before and beside the training."""

    intrusions: Mapping[str, Intrusion] = {}

    def __init__(self, name: str, *, is_resumed: bool) -> None:
        self.name = name
        self._is_resumed = is_resumed

    def prepare(self, folder: Path, seed: int) -> None:
        """Leave what a killed job leaves, or nothing."""
        if not self._is_resumed:
            return
        directory = RunDirectory(folder / RUN)
        directory.prepare()
        directory.create_record(RunRecord(RUN_ID, FORMAT, 0.0, 4, 0, 1))
        directory.acquire_lease().release()
        save_step(CheckpointStore(directory.path), seed, OLD)
        journal = Journal(directory.journal_path, run_id=RUN_ID, source="client")
        journal.record(LaunchBegan(3, (), None))
        journal.close()
        with directory.journal_path.open("ab") as file:
            file.write(_TORN)

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Begin, save, and prove the directory as a writer does."""
        try:
            job = take(RunDirectory(folder / RUN))
        except JobError as error:
            say(f"refused: {error}")
            return
        say(f"began {job.record.run_id}")
        _refuse_a_second(job, say)
        for number in range(LINES):
            job.journal.record(LaunchBegan(job.generation, (), number))
            say(f"line {number}")
        say(f"generation {job.generation}")
        _save(job, seed, say)
        _look(job, say)
        job.journal.close()
        job.lease.release()

    def judge(self, after: Aftermath) -> None:
        """The next job takes the same run, with all that was acknowledged."""
        began = [word.split()[1] for word in after.words if word.startswith("began")]
        if after.has_said("not its own"):
            after.complain(Wrong.OTHER, "the job takes itself for another one, and saves no more")
        if after.has_said("two owners"):
            after.complain(Wrong.OTHER, "a second job was given the lease")
        try:
            job = _next_job(RunDirectory(after.run_dir))
        except JobError as error:
            after.complain(Wrong.OTHER, f"the next job cannot begin: {error}")
            return
        job.journal.close()
        job.lease.release()
        known = RUN_ID if self._is_resumed else next(iter(began), job.record.run_id)
        if job.record.run_id != known:
            after.complain(Wrong.LOST, f"run {known} is lost, {job.record.run_id} has its place")
            return
        self._judge_saves(after, job)
        if not after.has_lost_memory:
            _judge_lines(after, job)

    def _judge_saves(self, after: Aftermath, job: Job) -> None:
        saved = after.steps("saved")
        verdict = Verdict(after, after.run_dir, job.record.run_id)
        verdict.restored_step(max({OLD if self._is_resumed else 0} | saved))
        used = after.steps("generation") if saved else set()
        if used and job.generation <= max(used):
            after.complain(Wrong.OTHER, f"generation {job.generation} is used again")


def _next_job(directory: RunDirectory) -> Job:
    """Take the directory; where it seems to have no locks, watch a dead owner's lease first."""
    now = 0.0
    watch = Stillness(lambda: now)
    with contextlib.suppress(RunDirectoryBusy):
        return take(directory, watch)
    now = LASTS_S
    return take(directory, watch)


def _refuse_a_second(job: Job, say: Say) -> None:
    try:
        job.directory.acquire_lease().release()
        say("two owners")
    except RunDirectoryBusy:
        pass
    except JobError as error:
        say(f"refused a second: {error}")


def _save(job: Job, seed: int, say: Say) -> None:
    path = job.directory.path
    store = CheckpointStore(path, FileSystem(path, job.claim.prove))
    try:
        save_step(store, seed, NEW, job.generation, job.record.run_id)
        say(f"saved {NEW}")
    except CheckpointError as error:
        say(f"failed to save: {error}")


def _look(job: Job, say: Say) -> None:
    """Look whose the directory is, and end the job."""
    try:
        job.claim.prove()
    except DirectoryLost as error:
        say(f"not its own: {error}")
    except CommitRefused as error:
        say(f"unproved: {error}")
    job.lease.end()


def _judge_lines(after: Aftermath, job: Job) -> None:
    """Each line that was taken is there, or counted as missing by a later one."""
    records = read_journal(job.directory.journal_path)
    found = [record["relaunch"] for record in records if record.get("relaunch") is not None]
    gaps = sum(record["lines"] for record in records if record["event"] == "journal_gap")
    said = sorted(after.steps("line"))
    missing = [number for number in said if number not in found]
    later = [number for number in missing if any(other > number for other in found)]
    if len(later) > gaps or len(set(found)) != len(found):
        after.complain(Wrong.LOST, f"lines {later} are lost, and {gaps} counted; {found} are there")
    if missing and not gaps and not later and not after.is_failed:
        after.complain(Wrong.LOST, f"lines {missing} are lost, and nothing had failed")


BEGINS = (Begin("begin", is_resumed=False), Begin("resume", is_resumed=True))
