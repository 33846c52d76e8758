"""Temporary directories of a script: the first worker's is the run's, others have their own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.fit.directories import TemporaryDirectories
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import CallingScript


class Worker:
    """One process that runs the script, and has made its temporary directory."""

    def __init__(self, folder: Path, name: str, *, is_first: bool) -> None:
        self.is_first = is_first
        record = ScriptRecord(folder / "script.jsonl")
        script = CallingScript(Path(__file__))
        self.directories = TemporaryDirectories(record, script, lambda: self.is_first)
        self.path = make(self.directories, lambda: str(folder / name))
        self.file = f"{self.path}/logs/best"

    def write(self, text: str) -> None:
        """Write the file of the run, as a hook does."""
        os.makedirs(f"{self.path}/logs", exist_ok=True)
        Path(self.file).write_text(text)


def make(directories: TemporaryDirectories, name: Callable[[], str]) -> str:
    """Be the line of the script that makes a temporary directory."""

    def plain() -> str:
        os.mkdir(name())
        return name()

    return directories.make(plain)


@pytest.fixture
def workers(tmp_path: Path) -> tuple[Worker, Worker]:
    """The second worker, which comes to its directory first, and the first one."""
    other = Worker(tmp_path, "b", is_first=False)
    return other, Worker(tmp_path, "a", is_first=True)


def test_what_all_workers_write_at_once_lies_apart(workers: tuple[Worker, Worker]) -> None:
    for worker in workers:
        (Path(worker.path) / "x.npy").write_text(worker.path)
    for worker in workers:
        worker.directories.gather()

    assert [(Path(worker.path) / "x.npy").read_text() for worker in workers] == [
        worker.path for worker in workers
    ]
    assert [worker.directories.is_apart(f"{worker.path}/x.npy") for worker in workers] == [
        True,
        False,
    ]


@pytest.mark.parametrize("is_first", [True, False])
def test_one_that_a_library_makes_is_the_workers_own(tmp_path: Path, *, is_first: bool) -> None:
    """A model that is saved there is loaded from there, and the first worker's has another name."""
    record = ScriptRecord(tmp_path / "script.jsonl")
    script = CallingScript(tmp_path / "train.py")
    directories = TemporaryDirectories(record, script, lambda: is_first)

    made = make(directories, lambda: str(tmp_path / "c"))

    assert made == str(tmp_path / "c")
    assert directories.is_apart(f"{made}/model.keras") is not is_first
    assert not directories.is_apart(f"{made}-other/model.keras")


@pytest.mark.parametrize("how", ["by a hook", "at the end"])
def test_what_callbacks_of_the_first_worker_write_is_found(
    workers: tuple[Worker, Worker], how: str
) -> None:
    other, first = workers
    if how == "by a hook":
        other.directories.link(other.file)
    first.write("best")
    if how == "at the end":
        other.directories.gather()

    assert Path(other.file).read_text() == "best"
    assert other.directories.place(other.file) == first.file


def test_next_first_worker_goes_on_in_the_directory_of_the_run(
    workers: tuple[Worker, Worker], tmp_path: Path
) -> None:
    other, first = workers
    first.write("epoch 1")
    other.is_first = True
    other.directories.lead()
    other.write("epoch 2")

    third = Worker(tmp_path, "c", is_first=False)
    third.directories.gather()
    relaunched = Worker(tmp_path, "d", is_first=True)
    assert relaunched.path == first.path
    assert [Path(worker.file).read_text() for worker in (first, third)] == ["epoch 2"] * 2


def test_own_directory_is_removed_at_once_and_that_of_the_run_at_the_end(
    workers: tuple[Worker, Worker],
) -> None:
    other, first = workers
    first.write("best")
    other.directories.gather()
    present = []
    for worker in workers:
        assert worker.directories.take_back(worker.path)
        present.append((os.path.exists(other.path), os.path.exists(first.file)))
    first.directories.remove()

    assert present == [(False, True), (False, True)]
    assert not os.path.exists(first.path)
    assert not first.directories.take_back(shutil.__file__)
