"""Record, lease and journal of a run are spoilt: the run goes on as it is, or is refused.

A changed record may not pass for the old one, and no job of another name may remove the
steps of this run.  A damaged line of a journal costs that line, and no line of the next job.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from job import RUN_ID, WRITERS, state_of
from tally import Tally, Wrong
from verdict import Verdict
from victim import Aftermath
from victims.begin import Job, take
from whole_save import save

from damages.ways import OF_ANY_FILES, Files, read_files, strike, write_files
from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import restore_newest
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.commands.summary import summarize
from holdfast.runtime.errors import JobError, UsageError
from holdfast.runtime.run.checkpoint_events import Checkpoint
from holdfast.runtime.run.entries import entries_of
from holdfast.runtime.run.events import JobEnded, JobStarted, LaunchBegan, Relaunch, Step, Warned
from holdfast.runtime.run.failure_history import HistoryReader
from holdfast.runtime.run.journal import Journal, parse_line, read_journal
from holdfast.runtime.run.run_directory import FORMAT, Ownership, RunDirectory, RunRecord
from holdfast.runtime.training import consistency

NAME = "run"
CASES, SHORT_CASES = 3_500, 150
OLD, NEW, NEXT = 100, 200, 300
GENERATION = 3
_RECORD = RunRecord(RUN_ID, FORMAT, 0.0, 4, 0, 1)
_IDENTITY = {"seed": _RECORD.seed, "microbatches": _RECORD.microbatches}


class DamagedRun:
    """The files of a run directory beside its checkpoints."""

    def __init__(self, root: Path, seed: int, tally: Tally) -> None:
        self._directory = RunDirectory(root / "run")
        self._seed, self._tally = seed, tally
        self._pristine = _begun(self._directory, _RECORD)
        foreign = RunRecord("foreign", FORMAT, 1.0, 8, 5, 2)
        self._foreign = _begun(RunDirectory(root / "foreign"), foreign)
        store = CheckpointStore(self._directory.path)
        for step in (OLD, NEW):
            header = Header(RUN_ID, GENERATION, step)
            save(store, state_of(seed, step), header=header, writers=WRITERS, cursor=_IDENTITY)
        self._steps = read_files(store.directory)

    def run(self, case: int) -> None:
        """Damage, begin the next job, complain."""
        choose = random.Random(f"{self._seed}/{case}")
        files = dict(self._pristine)
        names = strike(files, choose, self._foreign, OF_ANY_FILES)
        shutil.rmtree(self._directory.path)
        write_files(self._directory.path, files)
        write_files(self._directory.checkpoints_path, self._steps)
        self._tally.note(names[0])
        self._judge(case, " and ".join(names), files)

    def _judge(self, case: int, what: str, files: Files) -> None:
        def complain(wrong: Wrong, text: str) -> None:
            self._tally.complain(wrong, case, f"{what}: {text}")

        try:
            job = take(self._directory)
        except JobError:
            self._tally.note("refused")
            complain_of = Verdict(self._aftermath(complain), self._directory.path)
            complain_of.has(OLD, NEW)
            return
        try:
            self._go_on(job, Verdict(self._aftermath(complain), self._directory.path))
            _judge_journal(job, files.get("journal.jsonl", b""), complain)
        finally:
            job.journal.close()
            job.lease.release()

    def _aftermath(self, complain: Any) -> Aftermath:
        return Aftermath(self._directory.path.parent, self._seed, (), complain)

    def _go_on(self, job: Job, verdict: Verdict) -> None:
        """Restore, save and prune as the job does."""
        store = CheckpointStore(job.directory.path)
        restored, rejections = restore_newest(store, run_id=job.record.run_id)
        if job.generation <= GENERATION:
            verdict.complain(Wrong.OTHER, f"generation {job.generation} is used again")
        if restored is None:
            self._tally.note("another run")
            if not all(rejection.reason for rejection in rejections):
                verdict.complain(Wrong.SILENT, "no step was restored, and nothing tells why")
            if job.record.run_id == RUN_ID:
                verdict.complain(Wrong.LOST, "both steps are whole, and none was restored")
        elif not _is_refused(job, restored.manifest.cursor) and not _is_same(job.record):
            verdict.complain(Wrong.SILENT, f"another record was taken for the run's: {job.record}")
        if self._saves(job, verdict):
            verdict.has(NEW)

    def _saves(self, job: Job, verdict: Verdict) -> bool:
        run_id = job.record.run_id
        store = CheckpointStore(job.directory.path)
        try:
            Ownership(job.directory.path, run_id, job.lease.token).prove()
            header = Header(run_id, job.generation, NEXT)
            save(store, state_of(self._seed, NEXT), header=header, writers=WRITERS)
        except CheckpointError as error:
            verdict.complain(Wrong.OTHER, f"the next save fails: {error}")
            return False
        Pruner(store, Retention(2), run_id).prune()
        if job.record.run_id != RUN_ID:
            shutil.rmtree(store.directory / f"step-{NEXT:012d}")
        return True


def _begun(directory: RunDirectory, record: RunRecord) -> Files:
    """Begin a run; return its files."""
    directory.prepare()
    directory.create_record(record)
    directory.acquire_lease().release()
    journal = Journal(directory.journal_path, run_id=record.run_id, source="head")
    journal.record(JobStarted(4, None, None, None, None, None, None))
    journal.record(LaunchBegan(GENERATION, (0, 1), None))
    for step in range(1, 6):
        journal.record(Step(step, 1, 0.01, 32, GENERATION))
    journal.record(Checkpoint(OLD, 0.1, 9000, GENERATION))
    journal.record(Relaunch("all died", (0, 1), None))
    journal.record(Checkpoint(NEW, 0.1, 9000, GENERATION))
    journal.record(JobEnded(75, "stopped"))
    journal.close()
    return read_files(directory.path)


def _is_same(record: RunRecord) -> bool:
    """Return whether the terms on which the bytes depend are those of the run."""
    terms = record.run_id, record.seed, record.microbatches
    return terms == (RUN_ID, _RECORD.seed, _RECORD.microbatches)


def _is_refused(job: Job, cursor: Any) -> bool:
    """Return whether a worker refuses to go on from a checkpoint with this record."""
    mine = {"seed": job.record.seed, "microbatches": job.record.microbatches}
    context: Any = SimpleNamespace(run_dir=job.directory.path)
    try:
        consistency.check_same_job(context, mine, cursor)
    except UsageError:
        return True
    return False


def _judge_journal(job: Job, damaged: bytes, complain: Any) -> None:
    """Whole lines are read, the next job's line is whole, and all readers bear the rest."""
    job.journal.record(Warned("after"))
    records = read_journal(job.directory.journal_path)
    if not any(record.get("text") == "after" for record in records):
        complain(Wrong.LOST, "the first line of the next job is lost")
    whole = [record for line in damaged.splitlines() if (record := parse_line(line)) is not None]
    if any(record not in records for record in whole):
        complain(Wrong.LOST, "a whole line of the journal is not read")
    HistoryReader(job.directory.journal_path).read()
    summarize(entries_of(records))
