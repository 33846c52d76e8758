"""A lease where no locks are: what its owner does with it, and who else holds it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from pathlib import Path

import pytest
from lockless import HERE, Place, renew

from holdfast.runtime.errors import RunDirectoryBusy, RunUnreadable, UsageError
from holdfast.runtime.run import lease as lease_module
from holdfast.runtime.run.lease import LASTS_S, RENEWED_EVERY_S, Lease
from holdfast.runtime.run.run_directory import FORMAT, Ownership, RunDirectory, RunRecord
from holdfast.runtime.run.run_restorer import RunKeeper

NO_LOCKS = [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP]
RECORD = RunRecord("a" * 16, FORMAT, 1.5, microbatches=4, seed=0, threads=1)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path / "run", monkeypatch)


@pytest.mark.parametrize("number", NO_LOCKS, ids=lambda number: errno.errorcode[number])
def test_directory_without_locks_is_taken(place: Place, number: int) -> None:
    """Such a mount was refused as one that cannot be written."""
    place.number = number

    lease = place.take()

    assert lease.is_renewed
    assert place.owner["token"] == lease.token != ""
    assert os.listdir(place.directory.path) == ["lease"]
    lease.release()


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EINVAL, UsageError), (errno.EIO, RunUnreadable)]
)
def test_lock_that_fails_otherwise_is_named_with_what_to_mount(
    place: Place, number: int, kind: type[UsageError]
) -> None:
    place.number = number

    with pytest.raises(UsageError) as caught:
        place.take()

    assert type(caught.value) is kind
    assert f"({errno.errorcode[number]})" in str(caught.value)
    if kind is UsageError:
        assert f"lease {place.directory.lease_path} cannot be locked" in str(caught.value)
        assert "Lustre: flock" in str(caught.value)


def test_owner_that_was_replaced_is_told_and_undoes_nothing(place: Place) -> None:
    dead = place.take()
    place.directory.create_record(RECORD)
    told: list[str] = []
    keeper = RunKeeper(place.directory, RECORD, dead, told.append)
    place.watch_to_the_end()
    lease = place.take()
    content = place.directory.lease_path.read_bytes()

    renew(dead)  # it wakes up
    dead.end()
    keeper.look()

    assert place.directory.lease_path.read_bytes() == content
    assert len(told) == 1
    assert "another job has taken the lease" in told[0]
    for one in (lease, dead):
        one.release()


def test_owner_that_renews_keeps_its_lease(place: Place) -> None:
    lease = place.take()
    for _ in range(5):
        place.watch_to_the_end()
        assert renew(lease)
    with pytest.raises(RunDirectoryBusy, match="of which 60 s are left"):
        place.take()
    lease.release()


def test_renewal_changes_nothing_that_a_supervisor_writes(place: Place) -> None:
    lease = place.take()
    heir = Lease(os.dup(lease.fileno()))
    seen = set()
    for socket in (Path("/a.sock"), Path("/another/longer.sock"), Path("/b")):
        lease.name_agent(socket)
        assert renew(heir)
        seen.add(place.owner.pop("renewed"))
        found = place.owner
        assert (found["agent"], found["token"], len(found)) == (str(socket), lease.token, 6)
    assert len(seen) == 3
    for one in (lease, heir):
        one.release()


def test_job_that_has_ended_leaves_nobody_waiting(place: Place) -> None:
    ended = place.take()
    ended.end()
    ended.release()

    lease = place.take()

    assert "ended" not in place.owner
    lease.release()


def test_lease_of_another_job_is_not_ended(place: Place) -> None:
    """A file server has given a lock away, so both jobs have one file open."""
    place.number = None
    old = place.take()
    fresh = Lease(os.dup(old.fileno()))
    fresh.begin("another job's", takes_orders=True, is_renewed=False)

    old.end()

    assert "ended" not in place.owner
    for one in (old, fresh):
        one.release()


def test_job_takes_its_own_lease_again(place: Place) -> None:
    """Somebody has put a copy in its place."""
    lease = place.take()
    place.directory.create_record(RECORD)
    told: list[str] = []
    keeper = RunKeeper(place.directory, RECORD, lease, told.append)
    content = place.directory.lease_path.read_bytes()
    place.directory.lease_path.unlink()
    place.directory.lease_path.write_bytes(content)

    keeper.look()

    assert told == []
    assert keeper.lease.token == place.owner["token"] == json.loads(content)["token"]
    assert renew(keeper.lease)
    keeper.lease.release()


def test_lease_that_was_removed_is_made_again_with_its_token_from_the_first(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that proved in between found another token, and refused its save."""
    lease = place.take()
    place.directory.create_record(RECORD)
    keeper = RunKeeper(place.directory, RECORD, lease, lambda _: None)
    claim = Ownership(place.directory.path, RECORD.run_id, lease.token)
    place.directory.lease_path.unlink()
    written: list[bytes] = []
    write = os.pwrite

    def prove_between(descriptor: int, content: bytes, offset: int) -> int:
        claim.prove()
        written.append(content)
        count = write(descriptor, content, offset)
        claim.prove()
        return count

    monkeypatch.setattr(os, "pwrite", prove_between)
    keeper.look()

    assert written
    keeper.lease.release()


def test_workers_of_a_job_hold_its_lease_by_the_token(place: Place) -> None:
    lease = place.take()
    place.directory.share_lease(lease)

    joined = place.directory.join_lease(lease.token)

    assert renew(joined)
    with pytest.raises(RunDirectoryBusy, match=HERE):
        place.directory.join_lease("another job's")
    for one in (lease, joined):
        one.release()


def test_holders_renew_beside_everything_else_until_they_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed, changes = threading.Semaphore(0), set[bytes]()
    write = os.pwrite

    def note(descriptor: int, content: bytes, offset: int) -> int:
        count = write(descriptor, content, offset)
        if offset:
            changes.add(content)
            renewed.release()
        return count

    monkeypatch.setattr(os, "pwrite", note)
    monkeypatch.setattr(lease_module, "RENEWED_EVERY_S", 0.001)
    monkeypatch.setattr(fcntl, "flock", _refuse)
    lease = RunDirectory(tmp_path).acquire_lease()
    for _ in range(3):
        assert renewed.acquire(timeout=10.0)
    heir = Lease(os.dup(lease.fileno()))  # the agent
    heir.keep()
    lease.release()
    for _ in range(5):
        assert renewed.acquire(timeout=10.0)
    heir.release()
    for thread in threading.enumerate():
        if thread.name == "holdfast-lease":
            thread.join(timeout=10.0)
            assert not thread.is_alive()

    assert len(changes) >= 8


def _refuse(*_: object) -> None:
    raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))


def test_lease_outlives_some_renewals_that_fail() -> None:
    assert LASTS_S >= 5 * RENEWED_EVERY_S


def test_lack_of_a_thread_is_an_error_of_the_system_and_leaves_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    lease = RunDirectory(tmp_path).acquire_lease()
    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(threading.Thread, "start", start)

    with pytest.raises(OSError, match="can't start new thread"):
        lease.keep()

    assert len(os.listdir("/proc/self/fd")) == before
    lease.release()
