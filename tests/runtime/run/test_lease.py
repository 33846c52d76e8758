"""A lease without a lock: how its owner keeps it, and who takes it from whom."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import pytest

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.errors import RunDirectoryBusy, RunUnreadable, UsageError
from holdfast.runtime.run import lease as lease_module
from holdfast.runtime.run.lease import LASTS_S, RENEWED_EVERY_S, Lease
from holdfast.runtime.run.run_directory import (
    FORMAT,
    DirectoryLost,
    Ownership,
    RunDirectory,
    RunRecord,
)
from holdfast.runtime.system.witnessed_time import Stillness

NO_LOCKS = [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP]
RECORD = RunRecord("a" * 16, FORMAT, 1.5, microbatches=4, seed=0, threads=1)


HERE = f"pid {os.getpid()} on host {os.uname().nodename}"


class Place:
    """A run directory, hosts with and without locks there, and a watch with a clock of its own."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = RunDirectory(path)
        self.directory.prepare()
        self.number: int | None = errno.ENOSYS
        self._flock: Callable[..., Any] = fcntl.flock
        monkeypatch.setattr(fcntl, "flock", self._lock)
        monkeypatch.setattr(Lease, "keep", lambda _: None)  # tests renew by hand
        self.now = 100.0
        self.watch = Stillness(lambda: self.now)

    def _lock(self, descriptor: int, kind: int) -> None:
        if self.number is not None:
            raise OSError(self.number, os.strerror(self.number))
        self._flock(descriptor, kind)

    def take(self) -> Lease:
        return self.directory.acquire_lease(watch=self.watch)

    def watch_to_the_end(self) -> None:
        """Let the watch see the lease for as long as one lasts."""
        with pytest.raises(RunDirectoryBusy):
            self.take()
        self.now += LASTS_S

    @property
    def owner(self) -> dict[str, Any]:
        return self.directory.lease_owner()


def renew(lease: Lease) -> bool:
    return lease._renew(lease.fileno())


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
    claim = Ownership(place.directory.path, RECORD.run_id, dead.token)
    place.watch_to_the_end()
    lease = place.take()
    content = place.directory.lease_path.read_bytes()

    renew(dead)  # it wakes up
    dead.end()

    assert place.directory.lease_path.read_bytes() == content
    with pytest.raises(DirectoryLost, match="another job has taken the lease"):
        claim.prove()
    for one in (lease, dead):
        one.release()


def test_renewal_changes_nothing_that_names_the_head(place: Place) -> None:
    lease = place.take()
    heir = Lease(os.dup(lease.fileno()))
    seen = set()
    for socket in (Path("/a.sock"), Path("/another/longer.sock"), Path("/b")):
        lease.name_head(7, socket)
        assert renew(heir)
        seen.add(place.owner.pop("renewed"))
        found = place.owner
        assert (found["agent"], found["pid"], len(found)) == (str(socket), 7, 6)
        assert found["token"] == lease.token
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


def renewed_before_the_move(owner: Lease, patch: pytest.MonkeyPatch) -> None:
    """Let the owner renew its lease after the taker's last look."""
    move = lease_module.move

    def late(source: Path, target: Path) -> None:
        renew(owner)
        move(source, target)

    patch.setattr(lease_module, "move", late)


def test_second_job_is_told_at_once_how_a_dead_owner_is_recognised(place: Place) -> None:
    lease = place.take()

    with pytest.raises(RunDirectoryBusy) as caught:
        place.directory.acquire_lease()

    said = str(caught.value)
    assert HERE in said
    assert "no locks, so a dead owner shows only by 60 s without a sign of life" in said
    assert "of which 60 s are left: --wait-lease 90 watches for that" in said
    assert f"remove {place.directory.lease_path}" in said
    lease.release()


def test_lease_of_a_dead_owner_runs_out_by_the_watcher_s_clock_alone(place: Place) -> None:
    """Its node is gone, and nobody can ask it."""
    dead = place.take()
    place.directory.create_record(RECORD)
    claim = Ownership(place.directory.path, RECORD.run_id, dead.token)
    for now, left in [(100.0, 60), (130.0, 30), (159.0, 1)]:
        place.now = now
        os.utime(place.directory.lease_path, (now * 1e7, now * 1e7))  # clocks of hosts differ
        with pytest.raises(RunDirectoryBusy, match=f"of which {left} s are left"):
            place.take()
    claim.prove()

    place.now = 160.0
    lease = place.take()

    assert place.owner["token"] == lease.token != dead.token
    with pytest.raises(CommitRefused, match="another job has taken the lease"):
        claim.prove()
    assert sorted(os.listdir(place.directory.path)) == ["RUN.json", "lease"]
    for one in (lease, dead):
        one.release()


def test_owner_that_wakes_up_while_its_lease_is_taken_keeps_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = place.take()
    place.watch_to_the_end()
    renewed_before_the_move(lease, monkeypatch)

    with pytest.raises(RunDirectoryBusy, match=HERE):
        place.take()

    assert place.owner["token"] == lease.token
    assert os.stat(place.directory.lease_path).st_nlink == 1
    assert os.listdir(place.directory.path) == ["lease"]
    lease.release()


@pytest.mark.parametrize("moment", ["before the move", "after the move"])
def test_taker_that_comes_second_gets_nothing(
    place: Place, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    dead = place.take()
    place.watch_to_the_end()
    rename, others = Path.rename, list[Lease]()

    def race(path: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        if moment == "before the move":
            others.append(place.take())
            return rename(path, target)
        moved = rename(path, target)
        others.append(place.directory.acquire_lease())
        return moved

    monkeypatch.setattr(Path, "rename", race)
    with pytest.raises(RunDirectoryBusy, match="belongs to another job"):
        place.take()

    assert place.owner["token"] == others[0].token
    assert os.listdir(place.directory.path) == ["lease"]
    for one in (dead, *others):
        one.release()


def test_taker_leaves_a_lease_to_the_one_that_has_moved_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = place.take()
    place.watch_to_the_end()
    rename = Path.rename

    def move_first(path: Path, target: Path) -> Path:
        rename(path, path.with_name("moved"))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", move_first)
    with pytest.raises(RunDirectoryBusy, match="its owner is just starting"):
        place.take()

    assert os.listdir(place.directory.path) == ["moved"]
    dead.release()


def test_taker_that_opens_the_file_while_it_is_moved_makes_no_other_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made an empty one, for which all takers waited a minute."""
    dead = place.take()
    existing = lease_module.open_existing

    def move_before(path: Path) -> int:
        monkeypatch.setattr(lease_module, "open_existing", existing)
        path.rename(path.with_name("moved"))
        return existing(path)

    monkeypatch.setattr(lease_module, "open_existing", move_before)

    lease = place.take()

    assert place.owner["token"] == lease.token
    for one in (dead, lease):
        one.release()


def test_new_lease_that_is_still_empty_is_not_the_empty_one_that_was_watched(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = place.directory.lease_path
    path.touch()
    place.watch_to_the_end()
    rename = Path.rename

    def replace(old: Path, target: Path) -> Path:
        rename(old, old.with_name("moved"))
        old.touch()
        return rename(old, target)

    monkeypatch.setattr(Path, "rename", replace)
    with pytest.raises(RunDirectoryBusy, match="its owner is just starting"):
        place.take()

    assert sorted(os.listdir(place.directory.path)) == ["lease", "moved"]


@pytest.mark.parametrize("comes_back", [True, False])
def test_owner_whose_new_lease_is_moved_by_mistake_waits_for_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, *, comes_back: bool
) -> None:
    path, begin, sleeps = place.directory.lease_path, Lease.begin, list[float]()
    aside = path.with_name("aside")

    def begin_and_lose(lease: Lease, token: str, **how: bool) -> None:
        begin(lease, token, **how)
        path.rename(aside)

    def sleep(seconds: float) -> None:
        sleeps.append(seconds)
        if comes_back and len(sleeps) == 3:
            aside.rename(path)

    monkeypatch.setattr(Lease, "begin", begin_and_lose)
    monkeypatch.setattr(lease_module, "time", SimpleNamespace(sleep=sleep))
    if comes_back:
        assert place.take().token == place.owner["token"]
    else:
        with pytest.raises(RunDirectoryBusy):
            place.take()

    assert len(sleeps) == (3 if comes_back else 100)


def test_taker_that_dies_in_between_leaves_a_free_directory(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = place.take()
    place.watch_to_the_end()
    with monkeypatch.context() as dying:
        dying.setattr(Path, "unlink", _die)
        with pytest.raises(KeyboardInterrupt):
            place.take()

    lease = place.directory.acquire_lease()

    assert place.owner["token"] == lease.token
    for one in (lease, dead):
        one.release()


def _die(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b"\xff", b" " * (1 << 16)], ids=len)
def test_lease_that_is_empty_or_torn_is_watched_like_any_other(place: Place, left: bytes) -> None:
    """Its owner may be about to write it."""
    place.directory.lease_path.write_bytes(left)
    with pytest.raises(RunDirectoryBusy, match="its owner is just starting"):
        place.take()
    place.now += LASTS_S

    place.take().release()


def test_lock_that_this_host_cannot_see_is_respected(place: Place) -> None:
    place.number = None
    lease = place.take()
    place.number = errno.ENOSYS
    for place.now in (100.0, 1e6):
        with pytest.raises(RunDirectoryBusy, match=r"cannot tell whether .* remove .*/run/lease"):
            place.take()

    lease.end()
    place.take().release()
    lease.release()


def test_host_with_locks_respects_a_lease_that_is_renewed(place: Place) -> None:
    lease = place.take()
    place.number = None
    place.watch_to_the_end()
    assert renew(lease)
    place.watch_to_the_end()

    taken = place.take()

    assert not taken.is_renewed
    assert not renew(lease), "it is another job's by now"
    assert place.owner["token"] == taken.token
    for one in (lease, taken):
        one.release()


def test_dead_host_of_a_lock_is_told_as_one_that_the_server_must_notice(place: Place) -> None:
    place.number = None
    lease = place.take()
    elsewhere = {**place.owner, "host": "node7"}
    place.directory.lease_path.write_text(json.dumps(elsewhere))

    with pytest.raises(RunDirectoryBusy) as caught:
        place.take()

    assert f"pid {os.getpid()} on host node7" in str(caught.value)
    assert "if that host has died, the file server keeps its lock" in str(caught.value)
    assert "--wait-lease 10min" in str(caught.value)
    lease.release()


class Killed(BaseException):
    """Stands for the end of the process."""


def test_second_name_that_a_killed_taker_has_left_is_removed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = place.take()
    place.watch_to_the_end()
    unlink = Path.unlink

    def die(path: Path) -> None:
        if path.name.startswith(".lease."):
            raise Killed
        unlink(path)

    with monkeypatch.context() as patch:
        renewed_before_the_move(owner, patch)
        patch.setattr(Path, "unlink", die)
        with pytest.raises(Killed):
            place.take()
    assert len(os.listdir(place.directory.path)) == 2

    with pytest.raises(RunDirectoryBusy):
        place.take()

    assert os.listdir(place.directory.path) == ["lease"]
    owner.release()


def test_lease_that_cannot_be_looked_at_after_the_move_is_given_back(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = place.take()
    place.watch_to_the_end()
    opened = lease_module.open_to_read

    def fail(path: Path) -> AbstractContextManager[BinaryIO]:
        if path.name.startswith(".lease."):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return opened(path)

    with monkeypatch.context() as patch:
        renewed_before_the_move(owner, patch)
        patch.setattr(lease_module, "open_to_read", fail)
        with pytest.raises(UsageError, match="Too many open files"):
            place.take()

    assert os.listdir(place.directory.path) == ["lease"]
    assert place.owner["token"] == owner.token
    with pytest.raises(RunDirectoryBusy):
        place.take()
    owner.release()
