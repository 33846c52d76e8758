"""Only the first worker's files are real, and after its death the next one's are the same."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.callbacks.first_files import FirstFiles, Length, guarding

Hook = Callable[[Any, int], None]


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
        self.files = FirstFiles(is_first, lambda: scratch, self.said.append)
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


def test_third_worker_takes_over_from_the_second(
    folder: Path, tmp_path: Path, undisturbed: dict[str, bytes]
) -> None:
    workers = [Worker(folder, tmp_path / f"scratch-{i}", is_first=i == 0) for i in range(3)]
    for worker in workers:
        worker.run("begin")
    agree(*workers)
    for epoch in range(1, 4):
        for worker in workers:
            worker.run("end_epoch", epoch)
        if len(workers) > 1:
            workers.pop(0).die()
            workers[0].files.take_over()
        agree(*workers)

    workers[0].callbacks[0].file.close()
    assert content(folder) == undisturbed


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
        worker.files.restore({path: found.as_json() for path, found in lengths.items()})
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


def test_file_that_another_program_wrote_meanwhile_is_not_cut(folder: Path, tmp_path: Path) -> None:
    path = folder / "log.csv"
    path.write_text("something quite different, and longer than before")
    worker = Worker(folder, tmp_path / "scratch", is_first=True)

    worker.files.restore({str(path): [10, "0123456789abcdef"]})

    assert path.read_text() == "something quite different, and longer than before"
    assert len(worker.said) == 1
    assert "is not the file that the callbacks of this run wrote" in worker.said[0]


def test_other_threads_see_the_disk_as_it_is(folder: Path, tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    worker = Worker(folder, tmp_path / "scratch", is_first=False)
    with guarding(worker.files), ThreadPoolExecutor(1) as pool:
        pool.submit((folder / "shard").write_text, "saved").result()
        (folder / "callback").write_text("staged")

    assert content(folder) == {"shard": b"saved"}


def test_guard_is_gone_after_the_hooks(folder: Path, tmp_path: Path) -> None:
    before = (open, os.replace, os.mkdir, shutil.rmtree)
    worker = Worker(folder, tmp_path / "scratch", is_first=False)

    with pytest.raises(ZeroDivisionError), guarding(worker.files):
        1 / 0  # noqa: B018

    assert (open, os.replace, os.mkdir, shutil.rmtree) == before
    (folder / "real").write_text("real")
    assert content(folder) == {"real": b"real"}


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
