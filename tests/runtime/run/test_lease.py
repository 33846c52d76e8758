"""A lease without a lock: how its owner keeps it, and who takes it from whom."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO, TypeAlias

import pytest

from holdfast.checkpoint.errors import CommitRefused
from holdfast.runtime.errors import RunDirectoryBusy, RunUnreadable, UsageError
from holdfast.runtime.run import lease as lease_module
from holdfast.runtime.run.lease import LASTS_S, Lease, LeaseOwner
from holdfast.runtime.run.run_directory import FORMAT, Ownership, RunDirectory, RunRecord
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
    def owner(self) -> LeaseOwner:
        return self.directory.lease_owner()


def renew(lease: Lease) -> bool:
    return lease._renew(lease.fileno())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return Place(tmp_path / "run", monkeypatch)


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


Left: TypeAlias = Callable[["Place"], "Lease | None"]


def _nothing(_: Place) -> None: ...


def _living(place: Place) -> Lease:
    return place.take()


def _renewed(place: Place) -> Lease:
    lease = place.take()
    place.watch_to_the_end()
    assert renew(lease)
    return lease


def _ended(place: Place) -> Lease:
    lease = place.take()
    lease.end()
    return lease


def _torn(content: bytes) -> Left:
    def leave(place: Place) -> None:
        place.directory.lease_path.write_bytes(content)

    return leave


def _locked(place: Place) -> Lease:
    place.number = None
    lease = place.take()
    place.number = errno.ENOSYS
    return lease


def _locked_and_ended(place: Place) -> Lease:
    lease = _locked(place)
    lease.end()
    return lease


def _locked_elsewhere(place: Place) -> Lease:
    lease = _locked(place)
    place.number = None
    place.directory.lease_path.write_bytes(replace(place.owner, host="node7").encode())
    return lease


def _renewed_there_and_locked_here(place: Place) -> Lease:
    lease = _renewed(place)
    place.number = None
    return lease


WATCHED = (
    f"{HERE}.*no locks, so a dead owner shows only by 60 s without a sign of life, of which 60 s"
    " are left: --wait-lease 90 watches for that; .* remove .*/run/lease"
)


@pytest.mark.parametrize(
    ("left", "watched_s", "refusal"),
    [
        (_nothing, 0, None),
        (_living, 0, WATCHED),
        (_living, 59, "of which 1 s are left"),
        (_living, 60, None),
        (_renewed, 0, "of which 60 s are left"),
        (_ended, 0, None),
        *[
            (_torn(content), watched_s, refusal)
            for content in (b"", b"{", b"[]", b"\xff", b" " * (1 << 16))
            for watched_s, refusal in ((0, "its owner is just starting"), (60, None))
        ],
        (_locked, 1e6, "cannot tell whether .* remove .*/run/lease"),
        (_locked_and_ended, 0, None),
        (
            _locked_elsewhere,
            0,
            "on host node7.*if that host has died, the file server keeps its lock .*10min",
        ),
        (_renewed_there_and_locked_here, 59, "of which 1 s are left"),
        (_renewed_there_and_locked_here, 60, None),
    ],
)
@pytest.mark.parametrize("number", NO_LOCKS, ids=lambda number: errno.errorcode[number])
def test_lease_is_taken_from_who_has_ended_or_shown_no_life_by_the_watchers_own_clock(
    place: Place, left: Left, watched_s: float, refusal: str | None, number: int
) -> None:
    place.directory.create_record(RECORD)
    old = left(place)
    claim = None if old is None else Ownership(place.directory.path, RECORD.run_id, old.token)
    place.number = place.number and number
    if watched_s:
        with pytest.raises(RunDirectoryBusy):
            place.take()
        place.now += watched_s
        os.utime(place.directory.lease_path, (1e9, place.now * 1e7))  # clocks of hosts differ
    content = place.directory.lease_path.read_bytes() if old is not None else b""

    if refusal is not None:
        with pytest.raises(RunDirectoryBusy, match=refusal):
            place.take()
        assert place.directory.lease_path.read_bytes() == content or old is None
    else:
        lease = place.take()
        owner = place.owner
        assert (owner.token == lease.token != "", owner.ended) == (True, False)
        assert lease.is_renewed is (place.number is not None)
        assert sorted(os.listdir(place.directory.path)) == ["RUN.json", "lease"]
        if old is not None and claim is not None:
            renew(old)  # it wakes up, and undoes nothing
            old.end()
            assert place.owner.token == lease.token
            assert not place.owner.ended
            with pytest.raises(CommitRefused, match="another job has taken the lease"):
                claim.prove()
        lease.release()
    if old is not None:
        old.release()


def test_renewal_changes_nothing_that_names_the_head(place: Place) -> None:
    lease = place.take()
    heir = Lease(os.dup(lease.fileno()))
    seen = set()
    for socket in (Path("/a.sock"), Path("/another/longer.sock"), Path("/b")):
        lease.name_head(7, socket)
        assert renew(heir)
        found = place.owner
        seen.add(found.renewed)
        assert (found.agent, found.pid, found.token) == (socket, 7, lease.token)
    assert len(seen) == 3
    for one in (lease, heir):
        one.release()


def test_lease_of_another_job_is_not_ended(place: Place) -> None:
    """A file server has given a lock away, so both jobs have one file open."""
    place.number = None
    old = place.take()
    fresh = Lease(os.dup(old.fileno()))
    fresh.begin("another job's", takes_orders=True, is_renewed=False)

    old.end()

    assert not place.owner.ended
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


def moved_by_another(_: Lease, patch: pytest.MonkeyPatch) -> None:
    """Let another taker move the lease away just before this one."""
    rename = Path.rename

    def move_first(path: Path, target: Path) -> Path:
        rename(path, path.with_name("moved"))
        return rename(path, target)

    patch.setattr(Path, "rename", move_first)


def killed_within_the_move(owner: Lease, patch: pytest.MonkeyPatch) -> None:
    """Let the taker die when it has put the lease of a living owner back."""
    renewed_before_the_move(owner, patch)
    killed_after_the_move(owner, patch)


def killed_after_the_move(_: Lease, patch: pytest.MonkeyPatch) -> None:
    """Let the taker die when it has moved the lease away."""
    unlink = Path.unlink

    def die(path: Path) -> None:
        if path.name.startswith(".lease."):
            raise KeyboardInterrupt
        unlink(path)

    patch.setattr(Path, "unlink", die)


@pytest.mark.parametrize(
    ("race", "is_kept", "others"),
    [
        (renewed_before_the_move, True, []),
        (moved_by_another, None, ["moved"]),
        (killed_within_the_move, True, []),
        (killed_after_the_move, False, []),
    ],
)
def test_taker_that_is_interrupted_leaves_a_lease_to_its_owner_or_a_free_directory(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    race: Callable[[Lease, pytest.MonkeyPatch], None],
    others: list[str],
    *,
    is_kept: bool | None,
) -> None:
    owner = place.take()
    place.watch_to_the_end()
    with monkeypatch.context() as patch:
        race(owner, patch)
        with pytest.raises((RunDirectoryBusy, KeyboardInterrupt)):
            place.take()

    if is_kept:
        with pytest.raises(RunDirectoryBusy):
            place.take()
        assert place.owner.token == owner.token
        assert os.listdir(place.directory.path) == ["lease"]
        assert os.stat(place.directory.lease_path).st_nlink == 1
    elif is_kept is None:
        assert os.listdir(place.directory.path) == others
    else:
        lease = place.directory.acquire_lease()
        assert place.owner.token == lease.token
        lease.release()
    owner.release()


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

    assert place.owner.token == others[0].token
    assert os.listdir(place.directory.path) == ["lease"]
    for one in (dead, *others):
        one.release()


def test_taker_that_opens_the_file_while_it_is_moved_makes_no_other_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It made an empty one, for which all takers waited a minute."""
    dead = place.take()
    opened = lease_module.open_to_write

    def move_before(path: Path, *flags: int, may_make: bool = True) -> int:
        if not may_make:
            monkeypatch.setattr(lease_module, "open_to_write", opened)
            path.rename(path.with_name("moved"))
        return opened(path, *flags, may_make=may_make)

    monkeypatch.setattr(lease_module, "open_to_write", move_before)

    lease = place.take()

    assert place.owner.token == lease.token
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
        assert place.take().token == place.owner.token
    else:
        with pytest.raises(RunDirectoryBusy):
            place.take()

    assert len(sleeps) == (3 if comes_back else 100)


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
    assert place.owner.token == owner.token
    with pytest.raises(RunDirectoryBusy):
        place.take()
    owner.release()
