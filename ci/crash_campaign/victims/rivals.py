"""Two jobs in one directory: the first goes on after a user has given its place to a second.

The user moves the directory away, or removes the lease; then the second job begins there.
It saves, acknowledges, and has a save in flight.  The first one may take none of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from committing_report import StrikeResult
from host import plan_of
from job import RUN_ID, WRITERS, save_step, state_of
from supervision import Say
from tally import Wrong
from verdict import Verdict
from victim import RUN, Aftermath, Intrusion
from whole_save import stage

from holdfast.checkpoint.errors import CheckpointError
from holdfast.checkpoint.manifest import Header, Manifest
from holdfast.checkpoint.store import CheckpointStore, Staging
from holdfast.runtime.errors import JobError
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.committer import Committer
from victims.begin import Job, take
from victims.maintenance import rest, saves

OLD, SAVES = (10, 20), (30, 40)
MOVED = "moved"


@dataclass(slots=True)
class Rival:
    """The second job: what it has acknowledged, and the save that it has in flight."""

    job: Job
    acknowledged: tuple[int, ...]
    staging: Staging
    manifest: Manifest

    @property
    def in_flight(self) -> int:
        """The step of the save in flight."""
        return self.manifest.step


class Rivals:
    """The first of two jobs."""

    name = "rivals"

    @property
    def intrusions(self) -> Mapping[str, Intrusion]:
        """How the second job comes to the directory."""
        return {"RUN-MOVED": _move, "LEASE-REMOVED": _remove_lease}

    def prepare(self, folder: Path, seed: int) -> None:
        """Make the run of the first job."""
        directory = RunDirectory(folder / RUN)
        directory.prepare()
        directory.create_record(RunRecord(RUN_ID, FORMAT, 0.0, 4, 0, 1))
        for step in OLD:
            save_step(CheckpointStore(directory.path), seed, step)

    def act(self, folder: Path, seed: int, say: Say) -> None:
        """Save and prune twice, with the care of a writer for its directory."""
        directory = RunDirectory(folder / RUN)
        try:
            lease = directory.acquire_lease()
            record = directory.load_record()
        except JobError as error:
            say(f"refused: {error}")
            return
        if record is None or record.run_id != RUN_ID:
            say("refused: another run is there")
            return
        plan = plan_of(directory.path, token=lease.token)
        committer = Committer(plan, StrikeResult())
        for _ in saves(committer, SAVES, seed, say):
            rest(committer)
        committer.close(10.0)

    def judge(self, after: Aftermath) -> None:
        """The second job has all that it has acknowledged, and ends the save in flight."""
        rival = after.intruder
        if not isinstance(rival, Rival):
            Verdict.of(after).restored_step(max({*OLD} | after.steps("saved")))
            return
        run_id = rival.job.record.run_id
        verdict = Verdict(after, after.run_dir, run_id)
        try:
            rival.staging.commit(rival.manifest)
        except CheckpointError as error:
            after.complain(Wrong.LOST, f"the second job's save in flight is lost: {error}")
        else:
            verdict.has(rival.in_flight)
        verdict.has(*rival.acknowledged)
        rival.job.lease.release()
        self._judge_first(after, run_id)

    def _judge_first(self, after: Aftermath, run_id: str) -> None:
        """What the first job has acknowledged lies where its directory is now."""
        place = after.run_dir if run_id == RUN_ID else after.folder / MOVED
        saved = after.steps("saved")
        if saved:
            Verdict(after, place).has(max(saved))


def _move(folder: Path, seed: int) -> Rival | None:
    """Move the run away, begin another one at its place."""
    (folder / RUN).rename(folder / MOVED)
    return _begin(folder, seed, (5, 15), 25)


def _remove_lease(folder: Path, seed: int) -> Rival | None:
    """Remove the lease, go on with the same run."""
    with contextlib.suppress(FileNotFoundError):
        (folder / RUN / "lease").unlink()
    return _begin(folder, seed, (50, 60), 70)


def _begin(folder: Path, seed: int, steps: tuple[int, ...], in_flight: int) -> Rival | None:
    """Be the second job, up to a save that is written and not committed; None if refused."""
    try:
        job = take(RunDirectory(folder / RUN))
    except JobError:
        return None
    job.journal.close()
    run_id, generation = job.record.run_id, job.generation
    store = CheckpointStore(folder / RUN)
    for step in steps:
        save_step(store, seed, step, generation, run_id)
    header = Header(run_id, generation, in_flight)
    return Rival(
        job, steps, *stage(store, state_of(seed, in_flight), header=header, writers=WRITERS)
    )
