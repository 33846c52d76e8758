"""Directories, temporary ones and caches that all workers and launches make and remove."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.fit.directories import SharedDirectories, TemporaryDirectories, share_caches
from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.worker.script_clock import CallingScript, during_training

_LONG_AGO, _NEVER = 0.0, float("inf")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory; Python's own functions are put back after the test."""
    for module, name in (
        (os, "mkdir"),
        (os, "remove"),
        (os, "unlink"),
        (shutil, "rmtree"),
        (tempfile, "mkdtemp"),
    ):
        monkeypatch.setattr(module, name, getattr(module, name))
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    return run_dir


def share_directories(run_dir: Path, since: float) -> SharedDirectories:
    """Let this module be the script of a process of the run."""
    record = ScriptRecord(run_dir.resolve() / "script.jsonl")
    shared = SharedDirectories(record, CallingScript(Path(__file__)), run_dir, since)
    shared.share()
    return shared


@pytest.fixture
def launches(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], SharedDirectories]:
    """Begins a process of the run in the place of the one before."""
    plain = os.mkdir, os.remove, os.unlink, shutil.rmtree, tempfile.mkdtemp

    def launch() -> SharedDirectories:
        os.mkdir, os.remove, os.unlink, shutil.rmtree, tempfile.mkdtemp = plain
        return share_directories(run_dir, _LONG_AGO)

    return launch


def test_each_worker_may_make_the_directory_of_results(run_dir: Path, tmp_path: Path) -> None:
    share_directories(run_dir, _LONG_AGO)
    for _ in range(2):
        os.mkdir(tmp_path / "results")
        os.makedirs(tmp_path / "many" / "results")
        (tmp_path / "more").mkdir()
    assert (tmp_path / "many" / "results").is_dir()


def test_directory_that_is_older_than_the_job_is_an_error(run_dir: Path, tmp_path: Path) -> None:
    share_directories(run_dir, _NEVER)
    os.mkdir(tmp_path / "results")
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "results")


def test_file_is_no_directory(run_dir: Path, tmp_path: Path) -> None:
    share_directories(run_dir, _LONG_AGO)
    (tmp_path / "results").touch()
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "results")


def test_run_directory_stays_exact(run_dir: Path) -> None:
    share_directories(run_dir, _LONG_AGO)
    (run_dir / "checkpoints").mkdir()
    with pytest.raises(FileExistsError):
        (run_dir / "checkpoints").mkdir()


def test_temporary_directories_of_libraries_are_never_shared(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_directories(run_dir, _LONG_AGO)
    names = iter(["same", "same", "other"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: names)
    monkeypatch.setattr(CallingScript, "owns", lambda *_: False)
    made = {tempfile.mkdtemp(prefix="", dir=tmp_path) for _ in range(2)}
    assert made == {str(tmp_path / "same"), str(tmp_path / "other")}


def test_run_directory_stays_exact_under_another_name_too(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(run_dir)
    share_directories(tmp_path / "link", _LONG_AGO)
    (run_dir / "checkpoints").mkdir()

    for name in ("link", "run"):
        with pytest.raises(FileExistsError):
            os.mkdir(tmp_path / name / "checkpoints")


@pytest.mark.parametrize("convert", [str, os.fsencode, Path], ids=["text", "bytes", "path"])
def test_directory_is_shared_however_it_is_named(
    run_dir: Path, tmp_path: Path, convert: Callable[[Path], str]
) -> None:
    share_directories(run_dir, _LONG_AGO)

    for _ in range(2):
        os.mkdir(convert(tmp_path / "results"), 0o700)

    assert stat.S_IMODE((tmp_path / "results").stat().st_mode) == 0o700


def test_directory_below_a_descriptor_stays_exact(run_dir: Path, tmp_path: Path) -> None:
    share_directories(run_dir, _LONG_AGO)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        os.mkdir("results", dir_fd=descriptor)
        with pytest.raises(FileExistsError):
            os.mkdir("results", dir_fd=descriptor)
    finally:
        os.close(descriptor)

    assert (tmp_path / "results").is_dir()


def test_directory_without_a_parent_is_still_an_error(run_dir: Path, tmp_path: Path) -> None:
    share_directories(run_dir, _LONG_AGO)

    with pytest.raises(FileNotFoundError):
        os.mkdir(tmp_path / "none" / "results")


def make_temporary(tmp_path: Path) -> list[str]:
    """Run the lines of a script that makes three temporary directories, one of them for a while."""
    made = [tempfile.mkdtemp(dir=tmp_path) for _ in range(2)]
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        (Path(directory) / "weights").touch()
    return [*made, directory]


def test_temporary_directories_are_one_for_all_launches_until_all_have_ended(
    launches: Callable[[], SharedDirectories], tmp_path: Path
) -> None:
    launches()
    first = make_temporary(tmp_path)
    shutil.rmtree(first[0])
    second_launch = launches()

    second = make_temporary(tmp_path)
    present = [os.listdir(path) for path in first]
    second_launch.temporary.remove()

    assert second == first
    assert len(set(first)) == 3
    assert present == [[], [], ["weights"]]
    assert [os.path.exists(path) for path in first] == [True, True, False]
    assert len(list(tmp_path.iterdir())) == 3  # the run, and two that nobody has given back


def test_temporary_directory_in_another_place_is_known_by_its_line(
    launches: Callable[[], SharedDirectories], tmp_path: Path
) -> None:
    """Each batch job may have a place of its own for temporary files."""
    found = []
    for name in ("job 1", "job 2"):
        (tmp_path / name).mkdir()
        launch = launches()
        made = make_temporary(tmp_path / name)
        found.append([launch.temporary.lasting_name(f"{path}/weights") for path in made])
        assert {Path(path).parent for path in made} == {tmp_path / name}

    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def clear(tmp_path: Path) -> None:
    """Run the first lines of a script that clears its results."""
    for name in ("results", "logs"):
        if (tmp_path / name).exists():
            shutil.rmtree(tmp_path / name)
    if (tmp_path / "log.csv").exists():
        os.remove(tmp_path / "log.csv")
    os.makedirs(tmp_path / "results")


def test_script_clears_what_was_there_before_the_run_and_nothing_of_the_run(
    launches: Callable[[], SharedDirectories], tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "old").touch()
    (tmp_path / "log.csv").touch()

    for number in range(3):  # two workers, and a later launch
        shared = launches()
        clear(tmp_path)
        assert sorted(os.listdir(tmp_path / "results")) == ["best"] * (number > 0)
        assert (tmp_path / "log.csv").exists() == (number > 0)
        shared.training = 1
        with during_training():
            (tmp_path / "results" / "best").touch()
            (tmp_path / "log.csv").touch()
            shared.wrote(str(tmp_path / "log.csv"))
            os.makedirs(tmp_path / "logs" / "train", exist_ok=True)


def test_script_removes_what_its_training_has_made_also_in_a_later_launch(
    launches: Callable[[], SharedDirectories], tmp_path: Path
) -> None:
    path = tmp_path / "best.h5"
    for _ in range(2):  # the second one restores the training
        shared = launches()
        shared.training = 1
        with during_training():
            path.touch()
            shared.wrote(str(path))
        path.unlink()
        assert not path.exists()

    path.unlink()  # as a worker does that is slower than another one

    with pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "none")


def test_own_directory_may_be_made_and_removed_as_often_as_the_script_likes(
    launches: Callable[[], SharedDirectories], tmp_path: Path
) -> None:
    for _ in range(2):
        launches()
        for _ in range(2):
            os.mkdir(tmp_path / "scratch")
            shutil.rmtree(tmp_path / "scratch")
            assert not (tmp_path / "scratch").exists()


def test_later_launch_leaves_a_file_that_a_later_training_has_made_again(
    launches: Callable[[], SharedDirectories], tmp_path: Path
) -> None:
    """Each fold of a cross-validation saves, loads and removes the same file."""
    path = tmp_path / "best.keras"
    shared = launches()
    for training in (1, 2):
        shared.training = training
        with during_training():
            path.write_text(f"fold {training}")
            shared.wrote(str(path))
        if training == 1:
            os.remove(path)

    resumed = launches()  # the first training is over, the second one is not
    resumed.training = 1
    os.remove(path)
    assert path.read_text() == "fold 2"
    resumed.training = 2
    os.remove(path)
    assert not path.exists()


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


@pytest.mark.tensorflow
def test_each_worker_fills_a_cache_of_its_own_and_reads_one_that_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tf = pytest.importorskip("tensorflow")
    plain = tf.data.Dataset.cache
    list(plain(tf.data.Dataset.range(4), f"{tmp_path}/whole").as_numpy_iterator())
    monkeypatch.setattr(tf.data.Dataset, "cache", plain)
    (tmp_path / "own").mkdir()
    share_caches(tf, lambda: tmp_path / "own")

    def read(place: Any, size: int) -> list[int]:
        return list(tf.data.Dataset.range(size).cache(place).as_numpy_iterator())

    assert read(tmp_path / "new", 2) == read("", 2) == [0, 1]
    assert read(str(tmp_path / "whole"), 2) == [0, 1, 2, 3]
    assert not list(tmp_path.glob("new*"))
    assert (tmp_path / "own" / "cache-1.index").exists()
