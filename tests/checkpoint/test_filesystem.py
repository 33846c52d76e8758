"""The contract of file systems, kept by the local one and the fake; no link is followed."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fake_filesystem import FakeFileSystem, Survival
from filesystem_contract import FileSystemContract, LocalFileSystemContract, errno_of
from whole_save import save

from holdfast.checkpoint import filesystem
from holdfast.checkpoint import filesystem as module
from holdfast.checkpoint.disk import Disk
from holdfast.checkpoint.errors import TRANSIENT, CheckpointError, CheckpointInvalid
from holdfast.checkpoint.filesystem import FileSystem, PacedFileSystem
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.reader import restore, restore_newest
from holdfast.checkpoint.retention import Pruner, Retention
from holdfast.checkpoint.store import CheckpointStore

STATE = {"a": np.arange(5000.0)}

DOWNGRADE = "space cannot be reserved ahead: a full disk shows late"


ROOT = Path("/run")
FILE = ROOT / "file"


class TestLocalFileSystem(LocalFileSystemContract):
    """Where pytest's temporary files lie."""


class TestLocalFileSystemBelowRoot(LocalFileSystemContract):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        (tmp_path / "root" / "inner").mkdir(parents=True)
        return tmp_path / "root" / "inner"

    @pytest.fixture
    def files(self, root: Path) -> FileSystem:
        return FileSystem(root.parent)

    def test_no_call_goes_through_a_link_to_a_directory(
        self, files: FileSystem, root: Path, tmp_path: Path
    ) -> None:
        self.put(files, root / "file", b"contents")
        (root / "directory").mkdir()
        (root / "link").symlink_to(root)
        link = root / "link"

        calls: list[Callable[[], object]] = [
            lambda: files.open_read(link / "file"),
            lambda: files.create_exclusive(link / "new"),
            lambda: files.mkdir(link / "new"),
            lambda: files.list(link),
            lambda: files.fsync_directory(link),
            lambda: files.is_directory(link / "directory"),
            lambda: files.rename_noreplace(link / "file", link / "new"),
            lambda: files.rename_noreplace(root / "file", link / "new"),
            lambda: files.unlink(link / "file"),
            lambda: files.rmdir(link / "directory"),
        ]
        assert [errno_of(call) for call in calls] == [errno.ENOTDIR] * len(calls)
        assert files.list(root) == ("directory", "file", "link")

    def test_no_call_leaves_a_descriptor_behind(self, files: FileSystem, root: Path) -> None:
        before = os.listdir("/proc/self/fd")

        self.put(files, root / "file", b"contents")
        files.mkdir(root / "directory")
        files.rename_noreplace(root / "directory", root / "new")
        errno_of(lambda: files.list(root / "missing" / "deeper"))
        files.fsync_directory(root)
        files.rmdir(root / "new")

        assert os.listdir("/proc/self/fd") == before


class TestLocalFileSystemWithoutRenameat2(LocalFileSystemContract):
    """Plain rename(2) refuses to replace a directory that is not empty."""

    @pytest.fixture(autouse=True)
    def _old_kernel(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "renameat2", lambda source, target: False)


class TestFakeFileSystem(FileSystemContract):
    @pytest.fixture
    def root(self) -> Path:
        return Path("/run")

    @pytest.fixture
    def files(self, root: Path) -> FileSystem:
        return FakeFileSystem(root)


def calls_below(stop: int) -> list[object]:
    """Return the numbers of the calls; a unit test takes only a few."""
    rest = pytest.mark.extended
    return [pytest.param(call, marks=() if call % 6 == 1 else rest) for call in range(1, stop)]


class Swapping(FileSystem):
    """A file system on which an attacker swaps a directory for a link before the n-th call."""

    def __init__(self, root: Path, victim: Path, elsewhere: Path, call: int) -> None:
        super().__init__(root)
        self._victim, self._elsewhere = victim, elsewhere
        self._calls_left = call

    def __getattribute__(self, name: str) -> object:
        if not name.startswith("_"):
            self._count()
        return super().__getattribute__(name)

    def _count(self) -> None:
        self._calls_left -= 1
        if self._calls_left <= 0 and self._victim.is_dir() and not self._victim.is_symlink():
            self._victim.rename(self._victim.with_name("aside"))
            self._victim.symlink_to(self._elsewhere)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def save_steps(run_dir: Path, *steps: int) -> CheckpointStore:
    store = CheckpointStore(run_dir)
    for step in steps:
        save(store, STATE, header=Header("run", 1, step), writers=2)
    return store


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """Return another user's directory, which looks like a place for checkpoints."""
    store = save_steps(tmp_path / "other", 10, 20)
    return store.directory


def test_step_that_became_a_link_is_refused(tmp_path: Path, elsewhere: Path) -> None:
    store = save_steps(tmp_path / "run", 10)
    (store.directory / "step-000000000020").symlink_to(elsewhere / "step-000000000020")

    with pytest.raises(CheckpointInvalid, match="ENOTDIR"):
        restore(store, 20)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/step-000000000020"])
@pytest.mark.parametrize("call", calls_below(24))
def test_directory_swapped_while_restoring_leads_nowhere(
    tmp_path: Path, elsewhere: Path, name: str, call: int
) -> None:
    """The bytes of elsewhere would verify, so only the way to them can be refused."""
    run_dir = tmp_path / "run"
    save_steps(run_dir, 10, 20)
    target = elsewhere if name == "checkpoints" else elsewhere / "step-000000000020"
    files = Swapping(run_dir, run_dir / name, target, call)
    opened = recording(files)

    with contextlib.suppress(CheckpointError):
        restore_newest(CheckpointStore(run_dir, files))

    for handle in opened:
        assert Path(os.readlink(f"/proc/self/fd/{handle}")).is_relative_to(run_dir)
        os.close(handle)


def recording(files: FileSystem) -> list[int]:
    """Return duplicates of all descriptors that will be read from, in a list that fills."""
    found: list[int] = []
    opening: Callable[[Path], int] = type(files).__mro__[1].open_read.__get__(files)

    def open_read(path: Path) -> int:
        handle = opening(path)
        found.append(os.dup(handle))
        return handle

    files.open_read = open_read  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize(
    "name", ["checkpoints", "checkpoints/.tmp-000000000030-g1-a1", "checkpoints/step-000000000010"]
)
@pytest.mark.parametrize("call", calls_below(60))
def test_directory_swapped_while_saving_and_pruning_touches_nothing_elsewhere(
    tmp_path: Path, elsewhere: Path, name: str, call: int
) -> None:
    run_dir = tmp_path / "run"
    save_steps(run_dir, 10, 20)
    before = contents(elsewhere)
    target = elsewhere if name == "checkpoints" else elsewhere / "step-000000000010"
    store = CheckpointStore(run_dir, Swapping(run_dir, run_dir / name, target, call))

    with contextlib.suppress(CheckpointError):
        save(store, STATE, header=Header("run", 1, 30), writers=2)
        Pruner(store, Retention(2)).prune()

    assert contents(elsewhere) == before


def let_fallocate_answer(monkeypatch: pytest.MonkeyPatch, *numbers: int) -> list[str]:
    """Let one call after the other fail with a number, 0 for success; returns the calls made."""
    answers, calls = list(numbers), []

    def answer(*_arguments: object) -> int:
        number = answers.pop(0)
        ctypes.set_errno(number)
        return -1 if number else 0

    def function(name: str) -> Callable[..., int] | None:
        calls.append(name)
        return answer

    monkeypatch.setattr(filesystem, "_function", function)
    return calls


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.ENOSYS])
def test_file_system_without_reservation_is_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    calls = let_fallocate_answer(monkeypatch, number, number)
    written: list[int] = []
    plain = FileSystem.write

    def write(files: FileSystem, handle: int, buffers: list[memoryview], offset: int) -> int:
        written.append(sum(map(len, buffers)))
        return plain(files, handle, buffers, offset)

    monkeypatch.setattr(FileSystem, "write", write)
    monkeypatch.setattr(os, "posix_fallocate", lambda *_: pytest.fail("glibc emulates"))
    disk, told = Disk(FileSystem(tmp_path)), set[str]()

    for name in ("first", "second"):
        disk.write_durably(tmp_path / name, [memoryview(bytes(10_000))])

    assert calls == ["fallocate", "fallocate"]
    assert written == [10_000, 10_000]  # nothing was written twice
    assert disk.new_downgrades(told) == (DOWNGRADE,)
    assert disk.new_downgrades(told) == ()


def test_libc_without_the_call_is_a_downgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filesystem, "_function", lambda _name: None)
    disk = Disk(FileSystem(tmp_path))

    disk.write_durably(tmp_path / "file", [memoryview(b"data")])

    assert (tmp_path / "file").read_bytes() == b"data"
    assert disk.new_downgrades(set()) == (DOWNGRADE,)


def test_interrupted_reservation_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = let_fallocate_answer(monkeypatch, errno.EINTR, errno.EINTR, 0)

    FileSystem().allocate(0, 100)

    assert len(calls) == 3


class Clock:
    """A clock that only pauses and reads move."""

    def __init__(self) -> None:
        self.now = 100.0
        self.pauses: list[float] = []

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def read_all(path: Path, clock: Clock, *, bytes_per_s: float) -> bytes:
    files = PacedFileSystem(path.parent, bytes_per_s, pause=clock.pause, clock=clock)
    handle = files.open_read(path)
    content = b""
    while True:
        buffer = bytearray(1000)
        count = files.read(handle, memoryview(buffer), len(content))
        if not count:
            files.close(handle)
            return content
        content += bytes(buffer[:count])


def test_reads_take_the_time_of_their_bytes(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_bytes(bytes(range(250)) * 20)

    content = read_all(tmp_path / "file", clock, bytes_per_s=2000.0)

    assert content == bytes(range(250)) * 20
    assert clock.now == pytest.approx(100.0 + 5000 / 2000.0)


def test_reading_that_was_ended_says_nothing_of_the_bytes(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_bytes(bytes(1000))
    files = PacedFileSystem(tmp_path, 1000.0, pause=clock.pause, clock=clock)
    handle = files.open_read(tmp_path / "file")

    files.end()

    with pytest.raises(BlockingIOError) as caught:
        files.read(handle, memoryview(bytearray(500)), 0)
    assert caught.value.errno in TRANSIENT
    files.close(handle)


def put(files: FakeFileSystem, path: Path, data: bytes, *, is_synced: bool) -> None:
    handle = files.create_exclusive(path)
    files.write(handle, [memoryview(data)], 0)
    if is_synced:
        files.fsync(handle)
    files.close(handle)


def read_back(files: FakeFileSystem, path: Path) -> bytes | None:
    try:
        handle = files.open_read(path)
    except FileNotFoundError:
        return None
    data = bytearray(files.size(handle))
    files.read(handle, memoryview(data), 0)
    return bytes(data)


@pytest.mark.parametrize(
    ("is_synced", "has_name", "survivals", "found"),
    [
        (True, True, tuple(Survival), {b"data"}),
        (True, False, (Survival.NOTHING,), {None}),
        (False, False, (Survival.NAMES,), {b""}),
        (False, True, (Survival.ANYTHING,), {b"", b"d", b"da", b"dat", b"data"}),
    ],
    ids=["file and name are synced", "no name", "no contents", "old, new or torn"],
)
def test_file_survives_as_far_as_it_was_synced(
    survivals: tuple[Survival, ...], found: set[bytes | None], *, is_synced: bool, has_name: bool
) -> None:
    files = FakeFileSystem()
    put(files, FILE, b"data", is_synced=is_synced)
    if has_name:
        files.fsync_directory(ROOT)

    left = [files.after_power_cut(how, seed) for how in survivals for seed in range(80)]

    assert {read_back(after, FILE) for after in left} == found


def test_rename_without_sync_is_old_or_new_never_both_or_neither() -> None:
    files = FakeFileSystem()
    files.mkdir(ROOT / "old")
    files.fsync_directory(ROOT)
    files.rename_noreplace(ROOT / "old", ROOT / "new")

    found = {files.after_power_cut(Survival.ANYTHING, seed).list(ROOT) for seed in range(20)}

    assert found == {("old",), ("new",)}


def test_failed_sync_loses_what_a_later_one_claims_to_keep() -> None:
    """As Linux does: the pages are marked clean when the first sync fails."""
    files = FakeFileSystem()
    handle = files.create_exclusive(FILE)
    files.fsync_directory(ROOT)
    files.write(handle, [memoryview(b"data")], 0)
    files.fail_at(len(files.calls), errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        files.fsync(handle)
    files.fsync(handle)

    assert read_back(files.after_power_cut(Survival.NOTHING), FILE) == b""


def test_writeback_makes_nothing_durable_and_may_lose_all_of_it() -> None:
    begun, failed = FakeFileSystem(), FakeFileSystem()
    for files in (begun, failed):
        handle = files.create_exclusive(FILE)
        files.fsync_directory(ROOT)
        files.write(handle, [memoryview(b"data")], 0)
    begun.start_writeback(handle, 0, 4)
    failed.fail_at(len(failed.calls), errno.EIO)

    with pytest.raises(OSError, match="Input/output error"):
        failed.start_writeback(handle, 0, 4)
    failed.fsync(handle)

    for files in (begun, failed):
        assert read_back(files.after_power_cut(Survival.NOTHING), FILE) == b""
