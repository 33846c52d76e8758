"""Files of callbacks are real on the first worker, and after its death the next one's are."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.script.overlay import (
    Length,
    Overlay,
    PrivateFolder,
    guarding,
    length_of,
)


class Log:
    """A callback that keeps a file open."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "log.csv"

    def begin(self) -> None:
        self.file = self.path.open("w")

    def end_epoch(self, epoch: int) -> None:
        self.file.write(f"epoch {epoch}\n")


class Append:
    """A callback that opens its file for each line."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "lines.txt"

    def begin(self) -> None:
        with self.path.open("w") as file:
            file.write("begin\n")

    def end_epoch(self, epoch: int) -> None:
        with open(self.path, "a") as file:
            file.write("line\n" * (1 + epoch % 2))


class Rewrite:
    """A callback that writes a new file, and moves it to its place."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "made"

    def begin(self) -> None:
        os.makedirs(self.folder / "deeper")

    def end_epoch(self, epoch: int) -> None:
        beside = self.folder / "newest.tmp"
        beside.write_text(f"newest is {epoch}")
        assert beside.read_text() == f"newest is {epoch}"
        beside.replace(self.folder / "newest")
        (self.folder / f"epoch-{epoch}").write_bytes(b"x" * epoch)
        if epoch > 1:
            os.remove(self.folder / f"epoch-{epoch - 1}")


KINDS: list[Callable[[Path], Any]] = [Log, Append, Rewrite]

ALIVE: list[Worker] = []


@pytest.fixture(autouse=True)
def _everyone_dies() -> Iterator[None]:
    yield
    while ALIVE:
        worker = ALIVE.pop()
        if hasattr(worker.callbacks[0], "file"):
            worker.die()


class Worker:
    """A worker with one callback of each kind."""

    def __init__(self, folder: Path, scratch: Path, *, is_first: bool) -> None:
        scratch.mkdir(parents=True)
        self.said: list[str] = []
        self.files = Overlay(is_first, lambda: scratch, self.said.append)
        self.callbacks = [kind(folder) for kind in KINDS]
        ALIVE.append(self)

    def run(self, hook: str, *arguments: int, times: int = 3) -> None:
        """Run a hook of the first ``times`` callbacks."""
        with guarding(self.files):
            for callback in self.callbacks[:times]:
                getattr(callback, hook)(*arguments)

    def die(self) -> None:
        """Lose what is not written; descriptors are closed by the system."""
        handle = self.callbacks[0].file
        if not handle.closed:
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), handle.fileno())
            handle.close()


def agree(*workers: Worker) -> dict[str, Length]:
    lengths = workers[0].files.measure()
    for worker in workers:
        worker.files.agreed(lengths)
    return lengths


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, bytes]:
    """What one worker alone leaves behind after three epochs, without any guard."""
    folder = tmp_path / "plain"
    folder.mkdir()
    callbacks = [kind(folder) for kind in KINDS]
    for callback in callbacks:
        callback.begin()
    for epoch in range(1, 4):
        for callback in callbacks:
            callback.end_epoch(epoch)
    callbacks[0].file.close()
    return content(folder)


def test_files_of_the_first_worker_are_those_of_a_worker_alone(
    folder: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    workers = [Worker(folder, tmp_path / f"scratch-{i}", is_first=i == 0) for i in range(3)]
    for worker in reversed(workers):
        worker.run("begin")
    agree(*workers)
    for epoch in range(1, 4):
        for worker in reversed(workers) if epoch % 2 else workers:
            worker.run("end_epoch", epoch)
        agree(*workers)

    assert content(folder) == undisturbed
    for i, worker in enumerate(workers):
        worker.callbacks[0].file.close()
        left = [path.name for path in (tmp_path / f"scratch-{i}").iterdir()]
        assert [name.partition("-")[2] for name in left] == (["log.csv"] if i else [])


@pytest.mark.parametrize(
    ("hooks", "epoch", "is_flushed"), list(itertools.product(range(4), (1, 2, 3), (False, True)))
)
def test_next_first_worker_finishes_the_round_of_the_dead_one(
    folder: Path,
    tmp_path: Path,
    undisturbed: dict[str, bytes],
    hooks: int,
    epoch: int,
    is_flushed: bool,  # noqa: FBT001
) -> None:
    """The first worker dies when some of its callbacks have written their files."""
    first = Worker(folder, tmp_path / "first", is_first=True)
    second = Worker(folder, tmp_path / "second", is_first=False)
    first.run("begin")
    second.run("begin")
    agree(first, second)
    for earlier in range(1, epoch):
        first.run("end_epoch", earlier)
        second.run("end_epoch", earlier)
        agree(first, second)
    first.run("end_epoch", epoch, times=hooks)
    if is_flushed:
        first.callbacks[0].file.flush()
    first.die()
    second.run("end_epoch", epoch)

    second.files.take_over()
    agree(second)
    for later in range(epoch + 1, 4):
        second.run("end_epoch", later)
        agree(second)

    second.callbacks[0].file.close()
    assert content(folder) == undisturbed
    assert list((tmp_path / "second").iterdir()) == []
    assert second.said == []


@pytest.mark.parametrize("beyond", [0, 1, 2])
def test_launch_that_resumes_cuts_growing_files_and_goes_on(
    folder: Path, tmp_path: Path, undisturbed: dict[str, bytes], beyond: int
) -> None:
    """The checkpoint is that of epoch 1; the files have seen ``beyond`` epochs more."""
    lost = Worker(folder, tmp_path / "lost", is_first=True)
    lost.run("begin")
    lost.run("end_epoch", 1)
    lengths = agree(lost)
    for epoch in range(2, 2 + beyond):
        lost.run("end_epoch", epoch)
        agree(lost)
    lost.die()

    first = Worker(folder, tmp_path / "first", is_first=True)
    second = Worker(folder, tmp_path / "second", is_first=False)
    for worker in (second, first):
        worker.files.restore(lengths)
        worker.callbacks = [kind(folder) for kind in KINDS]
        worker.run("begin")
        worker.files.resumed()
    agree(first, second)
    for epoch in (2, 3):
        second.run("end_epoch", epoch)
        first.run("end_epoch", epoch)
        if epoch == 3:
            first.die()
            second.files.take_over()
            agree(second)
        else:
            agree(first, second)

    second.callbacks[0].file.close()
    assert content(folder) == undisturbed


def test_guard_is_for_hooks_in_their_own_thread(folder: Path, tmp_path: Path) -> None:
    worker = Worker(folder, tmp_path / "scratch", is_first=False)
    with guarding(worker.files), ThreadPoolExecutor(1) as pool:
        pool.submit((folder / "shard").write_text, "saved").result()
        (folder / "callback").write_text("staged")
    with pytest.raises(ZeroDivisionError), guarding(worker.files):
        1 / 0  # noqa: B018
    (folder / "real").write_text("after the hooks")

    assert content(folder) == {"shard": b"saved", "real": b"after the hooks"}


def test_devices_and_descriptors_are_left_alone(folder: Path, tmp_path: Path) -> None:
    worker = Worker(folder, tmp_path / "scratch", is_first=False)
    with guarding(worker.files):
        with open(os.devnull, "w") as nowhere:
            nowhere.write("x")
        reading, writing = os.pipe()
        with open(writing, "w") as pipe:
            pipe.write("told")
    with open(reading) as pipe:
        assert pipe.read() == "told"
    assert list((tmp_path / "scratch").iterdir()) == []


TAIL = 4096

WORDS = (
    "is not the file that the callbacks of this run wrote: it is not cut, and they go on at its end"
)


def files(*, is_first: bool = True) -> tuple[Overlay, list[str]]:
    """Return a worker's files, and the lines that they say."""
    said: list[str] = []
    return Overlay(is_first, lambda: Path("/none"), said.append), said


@given(st.binary(max_size=40), st.integers(0, 40), st.sampled_from([0, TAIL - 20, 3 * TAIL]))
def test_length_before_a_cut_is_that_of_the_file_when_it_was_shorter(
    content: bytes, size: int, before: int
) -> None:
    whole = bytes(before) + content
    size = min(before + size, len(whole))
    with tempfile.TemporaryDirectory() as folder:
        longer, shorter = Path(folder, "longer"), Path(folder, "shorter")
        longer.write_bytes(whole)
        shorter.write_bytes(whole[:size])

        assert length_of(longer, size) == length_of(shorter) == length_of(shorter, size)


@pytest.mark.parametrize("content", ["agre", "AGREED and more"], ids=["shorter", "other bytes"])
def test_file_of_another_program_is_not_cut_and_that_is_told(tmp_path: Path, content: str) -> None:
    path = tmp_path / "log"
    path.write_text("agreed")
    here, said = files()
    length = length_of(path)
    path.write_text(content)

    here.restore({str(path): length})

    assert path.read_text() == content
    assert said == [f"{path} {WORDS}"]


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_worker_cuts_files_of_a_checkpoint(
    tmp_path: Path, *, is_first: bool
) -> None:
    path, gone = tmp_path / "log", tmp_path / "gone"
    path.write_text("agreed and more")
    here, said = files(is_first=is_first)

    here.restore({str(path): length_of(path, 6), str(gone): [6, "0123"]})

    assert path.read_text() == ("agreed" if is_first else "agreed and more")
    assert here.is_resuming
    assert here.may_repeat
    assert said == []


def write(path: Path, mode: str, *, closes: bool = True) -> Any:
    file = path.open(mode)
    file.write("line\n")
    if closes:
        file.close()
    return file


def test_file_that_is_rewritten_does_not_grow_any_more(tmp_path: Path) -> None:
    here, _ = files()
    appended, opened = tmp_path / "appended", tmp_path / "opened"
    with guarding(here):
        write(appended, "a")
        held = write(opened, "w", closes=False)
    lengths = here.measure()
    here.agreed(lengths)
    with guarding(here):
        write(appended, "w")

    rewritten = here.measure()
    held.close()

    assert {path: length.size for path, length in lengths.items()} == {
        str(appended): 5,
        str(opened): 5,
    }
    assert list(rewritten) == [str(opened)]
    assert here.measure() == {}


LONG_AGO = 1_000_000

CHANGES: dict[str, Callable[[Path], object]] = {
    "mkdir": lambda folder: os.mkdir(folder / "new", 0o700),
    "makedirs": lambda folder: os.makedirs(folder / "new" / "deeper"),
    "rmdir": lambda folder: os.rmdir(folder / "empty"),
    "rmtree": lambda folder: shutil.rmtree(folder / "full"),
    "remove": lambda folder: os.remove(folder / "old"),
    "unlink": lambda folder: (folder / "old").unlink(),
    "replace": lambda folder: os.replace(folder / "old", folder / "other"),
    "rename": lambda folder: os.rename(folder / "old", folder / "moved"),
    "symlink": lambda folder: os.symlink("old", folder / "link"),
    "link": lambda folder: os.link(folder / "old", folder / "twin"),
    "chmod": lambda folder: os.chmod(folder / "old", 0o400),
    "utime": lambda folder: os.utime(folder / "old", (LONG_AGO, LONG_AGO)),
    "truncate": lambda folder: os.truncate(folder / "old", 1),
    "write": lambda folder: (folder / "old").write_text("new"),
    "exclusive": lambda folder: (folder / "fresh").open("x").close(),
}


def make(folder: Path) -> Path:
    """Make the folder that the hooks of a test change."""
    (folder / "empty").mkdir(parents=True)
    (folder / "full").mkdir()
    for name in ("old", "other", "full/file"):
        (folder / name).write_text(name)
    os.utime(folder / "old", (LONG_AGO - 1, LONG_AGO - 1))
    return folder


def picture(folder: Path) -> dict[str, tuple[object, ...]]:
    """Return what can be seen of all files: kind and mode, links, content, and the old time."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        time = status.st_mtime if path.name == "old" and status.st_mtime <= LONG_AGO else 0
        links = 0 if path.is_dir() else status.st_nlink
        found[str(path.relative_to(folder))] = (status.st_mode, links, content, time)
    return found


def guarded_files(tmp_path: Path, *, is_first: bool) -> Overlay:
    scratch = tmp_path / "scratch"
    scratch.mkdir(parents=True)
    return Overlay(is_first, lambda: scratch, lambda text: None)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_is_made_once_by_the_first_worker_or_by_the_next_one(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    plain, before = make(tmp_path / "plain"), picture(make(tmp_path / "before"))
    change(plain)

    def made(name: str, *, is_first: bool, is_agreed: bool = False) -> list[object]:
        """Return what is there after the hook, and after its worker has become the first one."""
        folder = make(tmp_path / name)
        here = guarded_files(tmp_path / f"of {name}", is_first=is_first)
        with guarding(here):
            change(folder)
        found = [picture(folder)]
        if is_agreed:
            here.agreed({})
        here.take_over()
        return [*found, picture(folder)]

    after = picture(plain)
    assert after != before
    assert made("first", is_first=True) == [after, after]
    assert made("next", is_first=False) == [before, after]
    assert made("other", is_first=False, is_agreed=True) == [before, before]


def test_file_that_the_first_worker_has_removed_already_is_no_error_for_the_next_one(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path / "folder")
    here = guarded_files(tmp_path, is_first=False)
    with guarding(here):
        os.remove(folder / "old")
        os.mkdir(folder / "new")
        os.remove(folder / "other")
    os.remove(folder / "old")
    os.mkdir(folder / "new")

    here.take_over()

    assert not (folder / "other").exists()


def test_file_that_is_written_and_removed_or_moved_in_one_round_is_what_it_is_then(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path / "folder")
    here = guarded_files(tmp_path, is_first=False)
    with guarding(here):
        for name in ("removed", "draft"):
            (folder / name).write_text(name)
        os.remove(folder / "removed")
        os.rename(folder / "draft", folder / "deeper")
        assert (folder / "deeper").read_text() == "draft"

    here.take_over()

    assert (folder / "deeper").read_text() == "draft"
    assert not (folder / "draft").exists()
    assert not (folder / "removed").exists()


def test_what_a_lost_launch_may_have_done_is_no_error_in_the_one_that_resumes(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path / "folder")
    here = guarded_files(tmp_path, is_first=True)

    with guarding(here), pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "gone")
    here.restore({})
    with guarding(here):
        os.remove(tmp_path / "gone")
        os.mkdir(folder / "empty")  # in on_train_begin
    here.resumed()
    with guarding(here), pytest.raises(FileExistsError):
        os.mkdir(folder / "empty")


def test_file_with_an_opener_of_its_own_is_left_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "folder")
    here = guarded_files(tmp_path, is_first=False)

    with guarding(here), open(folder / "old", "w", opener=os.open) as file:
        file.write("opened")

    assert (folder / "old").read_text() == "opened"


def test_a_file_that_is_changed_in_place_is_changed_in_a_copy(tmp_path: Path) -> None:
    real = tmp_path / "table.txt"
    real.write_text("old")

    here = Overlay(False, PrivateFolder(tmp_path, 4), print)
    with guarding(here), real.open("r+") as file:
        file.seek(0, 2)
        file.write(" and new")

    assert real.read_text() == "old"
    (staged,) = (tmp_path / ".private" / "4").iterdir()
    assert staged.read_text() == "old and new"


def test_folders_of_the_dead_are_removed_and_the_last_one_takes_all_away(tmp_path: Path) -> None:
    """Those of an earlier job, too; a folder that another worker has removed is made again."""
    folders = [PrivateFolder(tmp_path, worker) for worker in (0, 1, 7)]
    for folder in folders:
        (folder() / "1-folder").mkdir()

    folders[0].clear([0, 1])

    assert [path.name for path in (tmp_path / ".private").iterdir()] == ["1"]
    assert Overlay(False, folders[0], print).new_folder().is_dir()
    folders[0].clear([0, 1])
    folders[1].clear([0, 1])
    assert not (tmp_path / ".private").exists()
    assert folders[1]().is_dir()


def test_run_directory_that_is_gone_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run is gone"):
        PrivateFolder(tmp_path / "run", 3)()
