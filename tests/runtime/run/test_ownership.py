"""Nothing in a run directory is renamed or removed by a job that does not own it any more."""

from __future__ import annotations

import errno
import os
import random
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.errors import CheckpointError, CommitRefused
from holdfast.checkpoint.filesystem import FileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.run import run_directory
from holdfast.runtime.run.lease import Lease
from holdfast.runtime.run.run_directory import (
    FORMAT,
    DirectoryLost,
    Ownership,
    RunDirectory,
    RunRecord,
)

RECORD = RunRecord("a" * 16, FORMAT, 1.5, microbatches=4, seed=0, threads=1)
OTHER = replace(RECORD, run_id="b" * 16)


@dataclass
class Job:
    """One job: it owns a directory, saves, prunes, and keeps what was acknowledged."""

    directory: RunDirectory
    record: RunRecord
    lease: Lease

    def __post_init__(self) -> None:
        self.acknowledged: list[int] = []
        self.claim = Ownership(self.directory.path, self.record.run_id, self.lease.token)
        files = FileSystem(self.directory.path, self.claim.prove)
        self.store = CheckpointStore(self.directory.path, files)
        self._pruner = Pruner(self.store, Retention(2), self.record.run_id)

    @staticmethod
    def begin(path: Path, record: RunRecord) -> Job:
        """Begin a run, or resume it; raises ``RunDirectoryBusy`` if another job has it."""
        directory = RunDirectory(path)
        directory.prepare()
        lease = directory.acquire_lease()
        if directory.load_record() is None:
            directory.create_record(record)
        return Job(directory, record, lease)

    def save(self, step: int) -> bool:
        """Save and prune as a committer does; return whether the step was acknowledged."""
        header = Header(self.record.run_id, 1, step)
        try:
            self.claim.prove()
            save(self.store, {"a": np.full(100, step)}, header=header)
        except CheckpointError:
            return False
        self.acknowledged.append(step)
        try:
            self._pruner.prune()
            self.store.clean_staging(1)
        except CommitRefused:
            return True
        return True

    def has(self, step: int) -> bool:
        """Return whether a step of this run is whole in the directory."""
        return verify_step(CheckpointStore(self.directory.path), step).is_valid


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job.begin(tmp_path / "run", RECORD)


def test_directory_of_another_run_is_refused_by_name(job: Job) -> None:
    claim = Ownership(job.directory.path, OTHER.run_id, job.lease.token)

    with pytest.raises(DirectoryLost, match=f"belongs to run {RECORD.run_id} now, not to") as lost:
        claim.prove()
    assert lost.value.exit_code == ExitCode.RUN_DIRECTORY_BUSY


def test_another_job_of_the_same_run_is_refused(job: Job) -> None:
    """Its lease file was removed, so the kernel kept nobody out."""
    job.directory.lease_path.unlink()
    second = Job.begin(job.directory.path, RECORD)

    with pytest.raises(DirectoryLost, match="another job has taken the lease"):
        job.claim.prove()

    assert second.save(10)
    assert not job.save(20)
    assert second.has(10)


def test_token_is_known_though_the_lease_cannot_be_read_just_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its token a job would take the lease of any other job for its own."""
    directory = RunDirectory(tmp_path)
    lease = directory.acquire_lease()

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "pread", fail)
        token = lease.token

    assert token == directory.lease_token() != ""


def test_what_cannot_be_read_is_no_proof(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: RunDirectory) -> None:
        raise OSError(5, "Input/output error")

    assert job.save(10)
    monkeypatch.setattr(run_directory.RunDirectory, "lease_token", fail)

    assert not job.save(20)

    monkeypatch.undo()
    assert job.has(10)
    assert job.save(30), "it was only for a moment"


def test_directory_that_was_removed_is_lost_and_not_made_again(job: Job) -> None:
    shutil.rmtree(job.directory.path)

    with pytest.raises(DirectoryLost, match="was removed or moved") as lost:
        job.claim.prove()

    assert lost.value.exit_code == ExitCode.RECOVERY_IMPOSSIBLE
    assert not job.save(10)
    assert not job.directory.path.exists()


class Play:
    """Two jobs that meet in one directory, and a user who moves and removes it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.jobs = {"A": Job.begin(path, RECORD)}
        self._moved = 0

    def save(self, who: str, step: int) -> None:
        """Let a job save; it is acknowledged only in a directory of its own run."""
        job = self.jobs.get(who)
        if job is not None and job.save(step):
            assert job.directory.load_record() == job.record

    def move(self) -> None:
        """Move the directory away, with all that it has."""
        self._moved += 1
        self.path.rename(self.path.with_name(f"moved-{self._moved}"))
        self.forget()

    def remove(self) -> None:
        """Remove the directory, with all that it has."""
        shutil.rmtree(self.path)
        self.forget()

    def forget(self) -> None:
        for job in self.jobs.values():
            job.acknowledged.clear()

    def begin(self) -> None:
        """Begin the other run, if the directory is free for it."""
        if "B" not in self.jobs and not self.path.exists():
            self.jobs["B"] = Job.begin(self.path, OTHER)

    def restart(self) -> None:
        """Kill the first job and resume its run, if that is still here."""
        if RunDirectory(self.path).load_record() == RECORD:
            old = self.jobs["A"]
            old.lease.release()
            self.jobs["A"] = Job.begin(self.path, RECORD)
            self.jobs["A"].acknowledged = old.acknowledged

    def check(self) -> None:
        """The newest two acknowledged steps of the run that owns the directory are whole."""
        for job in self.jobs.values():
            if job.directory.load_record() == job.record:
                kept = sorted(job.acknowledged)[-2:]
                assert [step for step in kept if not job.has(step)] == []

    def close(self) -> None:
        for job in self.jobs.values():
            job.lease.release()


@pytest.mark.parametrize("seed", range(60))
def test_two_jobs_lose_no_acknowledged_checkpoint_of_the_rightful_one(
    tmp_path: Path, seed: int
) -> None:
    """Moves, removals and new jobs in any order."""
    dice = random.Random(seed)
    print("seed", seed)
    play = Play(tmp_path / "run")
    always = (lambda step: play.save("A", step), lambda step: play.save("B", step))
    there = (
        lambda _: play.move(),
        lambda _: play.remove(),
        lambda _: (play.path / "lease").unlink(missing_ok=True),
        lambda _: play.restart(),
    )
    for number in range(1, 40):
        choices = (*always, *there) if play.path.exists() else (*always, lambda _: play.begin())
        dice.choice(choices)(number * 10)
        play.check()
    play.close()
