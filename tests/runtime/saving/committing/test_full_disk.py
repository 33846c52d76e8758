"""A disk that is full: leftovers and old steps go, and the save is tried once more."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from committing_report import Told
from host_saves import LAUNCH, RUN, Workers, plan_of, saved_steps
from host_writer import RunningWriter

from holdfast.checkpoint.errors import StorageFailed
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.checkpoint.names import StagingName
from holdfast.checkpoint.repair import verify_step
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.saving.checkpoint_care import StepsInHand
from holdfast.runtime.saving.committer import Committer
from holdfast.runtime.saving.local_level import LocalTerms

BOUND_S = 60.0
ROOM_BYTES = 150_000
"""For three steps."""


class FullDisk:
    """A disk that takes nothing as long as it holds more than ``most`` steps."""

    def __init__(self, run_dir: Path, most: int, patch: pytest.MonkeyPatch) -> None:
        self._store = run_dir / "checkpoints"
        self._most = most
        plain = LocalFileSystem.allocate

        def allocate(files: LocalFileSystem, handle: int, size_bytes: int) -> None:
            if len(list(self._store.glob("step-*"))) > self._most:
                raise OSError(errno.ENOSPC, "No space left on device")
            plain(files, handle, size_bytes)

        patch.setattr(LocalFileSystem, "allocate", allocate)


def filled(workers: Workers, steps: int, told: Told) -> Committer:
    """Commit so many steps, none of which has to go by the rule of retention."""
    committer = Committer(workers.plan, told)
    for number in range(1, steps + 1):
        committer.commit(workers.held(number))
    return committer


def test_oldest_steps_make_room_for_a_new_one(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Told()
    committer = filled(workers, 5, told)
    FullDisk(tmp_path, most=4, patch=monkeypatch)

    committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[0] == 6
    assert set(store.steps()) == {2, 3, 4, 5, 6}, "no more than needed goes"
    assert all(verify_step(store, step).is_valid for step in store.steps())
    assert any("the disk is full" in str(record["reason"]) for record in told.of("prune_failed"))


def test_disk_that_has_no_room_for_a_third_step_fails_the_save(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = filled(workers, 5, Told())
    FullDisk(tmp_path, most=1, patch=monkeypatch)

    with pytest.raises(StorageFailed, match="No space left"):
        committer.commit(workers.held(6))

    committer.close(BOUND_S)
    store = CheckpointStore(tmp_path)
    assert store.steps()[:2] == (5, 4)
    assert all(verify_step(store, step).is_valid for step in (5, 4))
    assert [name for name in store.names() if name.startswith(".tmp")] == []


def limit_room(run: Path, patch: pytest.MonkeyPatch) -> None:
    allocate = LocalFileSystem.allocate

    def limited(files: LocalFileSystem, handle: int, size: int) -> None:
        used = sum(file.stat().st_size for file in run.rglob("*") if file.is_file())
        is_there = os.readlink(f"/proc/self/fd/{handle}").startswith(str(run))
        if is_there and used + size > ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate(files, handle, size)

    patch.setattr(LocalFileSystem, "allocate", limited)


def test_steps_of_the_local_directory_find_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, local = tmp_path / "run", tmp_path / "local"
    run.mkdir()
    record = RunRecord(RUN, FORMAT, 1.5, microbatches=4, seed=0, threads=1)
    RunDirectory(run).create_record(record)
    limit_room(run, monkeypatch)
    plan = plan_of(run, local=LocalTerms(local, every_saves=1000))
    workers, committer = Workers(plan), Committer(plan, Told())

    for attempt in range(1, 7):
        save = workers.held(10 * attempt, attempt)
        save.ticket = dataclasses.replace(save.ticket, goes_through=True)
        committer.commit(save)

    committer.close(60.0)
    store = CheckpointStore(run)
    assert store.steps()[0] == 60
    for step in store.steps():
        store.scan(step).verify()
    assert len(CheckpointStore(local).steps()) <= 3
    workers.close()


@pytest.fixture
def with_local(tmp_path: Path, writer: RunningWriter) -> Iterator[Workers]:
    """Return workers of a job with a local directory."""
    (tmp_path / "run").mkdir()
    terms = LocalTerms(tmp_path / "local", every_saves=1000)
    workers = Workers(plan_of(tmp_path / "run", local=terms))
    writer.use(workers)
    yield workers
    workers.close()


def refuse(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Let a directory take no new file."""
    plain = LocalFileSystem.create_exclusive

    def create_exclusive(files: LocalFileSystem, path: Path) -> int:
        if path.is_relative_to(directory):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(files, path)

    patch.setattr(LocalFileSystem, "create_exclusive", create_exclusive)


def test_answer_tells_which_directory_has_a_save_or_has_failed(
    tmp_path: Path, with_local: Workers, writer: RunningWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, local = tmp_path / "run", tmp_path / "local"
    with monkeypatch.context() as full:
        refuse(run, full)
        assert writer.save(with_local, 10, 1)["place"] == "local directory"
        assert writer.save(with_local, 20, 2, goes_through=True)["is_of_run"]
        refuse(local, full)
        assert writer.save(with_local, 30, 3)["is_of_run"], "it had to take what that refused"
    with monkeypatch.context() as full:
        refuse(local, full)
        assert "place" not in writer.save(with_local, 40, 4)
    assert "place" not in writer.save(with_local, 50, 5, goes_through=True)

    assert (saved_steps(run), saved_steps(local)) == ((50, 40), (10,))


def test_save_that_is_damaged_in_memory_is_no_failure_of_the_run_directory(
    with_local: Workers, writer: RunningWriter
) -> None:
    copied = with_local.copy_all(with_local.ticket(10, 1))
    with_local.flip_a_bit(1)
    writer.tell(*copied)

    answer = writer.answer()

    assert (answer["kind"], answer["is_of_run"]) == ("unsaved", False)


def test_room_is_made_beside_a_step_in_hand_and_before_another_one_begins() -> None:
    """What is staged would go for a leftover else."""
    in_hand, seen = StepsInHand(), list[str]()
    begun = threading.Event()

    def put() -> None:
        begun.set()
        with in_hand.putting(StagingName(20, 7, 1)):
            seen.append("put")

    with in_hand.putting(StagingName(10, 7, 1)), in_hand.making_room() as others:
        thread = threading.Thread(target=put)
        thread.start()
        assert begun.wait(BOUND_S)
        seen.append("room")
    thread.join(BOUND_S)

    assert others == (StagingName(10, 7, 1),)
    assert seen == ["room", "put"]


def test_one_step_is_put_by_one_thread_at_a_time_and_another_one_waits_for_nobody() -> None:
    in_hand, seen = StepsInHand(), list[int]()
    begun = threading.Event()

    def put_again() -> None:
        begun.set()
        with in_hand.putting(StagingName(10, 7, 2)):
            seen.append(2)

    with in_hand.putting(StagingName(10, 7, 1)):
        thread = threading.Thread(target=put_again)
        thread.start()
        assert begun.wait(BOUND_S)
        with in_hand.putting(StagingName(20, 7, 1)):
            seen.append(1)
    thread.join(BOUND_S)

    assert seen == [1, 2]


def test_room_for_a_drain_spares_what_a_save_has_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run").mkdir()
    plan = plan_of(tmp_path / "run", local=LocalTerms(tmp_path / "local", every_saves=1000))
    committer = Committer(plan, Told())
    care, name = committer._care, StagingName(30, LAUNCH, 3)
    staging = committer.store.staging(*(name.step, name.generation, name.attempt))
    leftover = committer.store.staging(20, LAUNCH, 1)

    with care.in_hand.putting(name):
        assert staging.open()
        assert leftover.open()
        care.make_room(1, StagingName(10, LAUNCH, 1))

    assert staging.path.exists()
    assert not leftover.path.exists()
    committer.close(BOUND_S)
