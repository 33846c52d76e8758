"""Folders that all workers and launches make and remove."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.script.calls import during_training
from holdfast.runtime.script.process import ScriptProcess

Begin = Callable[..., ScriptProcess]


def test_what_the_job_has_not_made_as_a_folder_is_an_error(begin: Begin, tmp_path: Path) -> None:
    """A folder below a descriptor is nobody's but its maker's."""
    begin(since=float("inf"))
    os.mkdir(tmp_path / "older")
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "older")
    begin()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        os.mkdir(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        os.mkdir(tmp_path / "none" / "results")
    below = os.open(tmp_path, os.O_RDONLY)
    try:
        os.mkdir("results", dir_fd=below)
        with pytest.raises(FileExistsError):
            os.mkdir("results", dir_fd=below)
    finally:
        os.close(below)


def test_run_directory_stays_exact_under_any_name(
    begin: Begin, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(run_dir)
    begin()
    (run_dir / "checkpoints").mkdir()

    for name in ("link", "run"):
        with pytest.raises(FileExistsError):
            os.mkdir(tmp_path / name / "checkpoints")


@pytest.mark.parametrize("convert", [str, os.fsencode, Path], ids=["text", "bytes", "path"])
def test_folder_is_shared_however_it_is_named_and_made(
    begin: Begin, tmp_path: Path, convert: Callable[[Path], str]
) -> None:
    begin()

    for _ in range(2):
        os.mkdir(convert(tmp_path / "results"), 0o700)
        os.makedirs(convert(tmp_path / "many" / "results"))
        (tmp_path / "more").mkdir()

    assert stat.S_IMODE((tmp_path / "results").stat().st_mode) == 0o700
    assert (tmp_path / "many" / "results").is_dir()


def make_temporary(tmp_path: Path) -> list[str]:
    """Run the lines of a script that makes three temporary folders, one of them for a while."""
    made = [tempfile.mkdtemp(dir=tmp_path) for _ in range(2)]
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder:
        (Path(folder) / "weights").touch()
    return [*made, folder]


def test_temporary_folders_are_one_for_all_workers_and_launches_until_all_have_ended(
    begin: Begin, tmp_path: Path
) -> None:
    begin()
    first = make_temporary(tmp_path)
    shutil.rmtree(first[0])
    second_launch = begin()

    second = make_temporary(tmp_path)
    present = [os.listdir(path) for path in first]
    second_launch.folders.remove_temporary()

    assert second == first
    assert len(set(first)) == 3
    assert present == [[], [], ["weights"]]
    assert [os.path.exists(path) for path in first] == [True, True, False]
    assert len(list(tmp_path.iterdir())) == 3  # the run, and two that nobody has given back


def test_temporary_folder_in_another_place_is_known_by_its_line(
    begin: Begin, tmp_path: Path
) -> None:
    """Each batch job may have a place of its own for temporary files."""
    found = []
    for name in ("job 1", "job 2"):
        (tmp_path / name).mkdir()
        launch = begin()
        made = make_temporary(tmp_path / name)
        found.append([launch.folders.lasting_name(f"{path}/weights") for path in made])
        assert {Path(path).parent for path in made} == {tmp_path / name}

    assert found[0] == found[1]
    assert len(set(found[0])) == 3


def test_temporary_folders_of_libraries_are_never_shared(begin: Begin, tmp_path: Path) -> None:
    made = set()
    for _ in range(2):
        begin()
        with during_training():  # as a library does, no line of the script makes it
            made.add(tempfile.mkdtemp(dir=tmp_path))
    assert len(made) == 2


def clear(tmp_path: Path) -> None:
    """Run the first lines of a script that clears its results."""
    for name in ("results", "logs"):
        if (tmp_path / name).exists():
            shutil.rmtree(tmp_path / name)
    if (tmp_path / "log.csv").exists():
        os.remove(tmp_path / "log.csv")
    os.makedirs(tmp_path / "results")


def test_script_clears_what_was_there_before_the_run_and_nothing_of_the_run(
    begin: Begin, tmp_path: Path
) -> None:
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "old").touch()
    (tmp_path / "log.csv").touch()

    for number in range(3):  # two workers, and a later launch
        process = begin()
        clear(tmp_path)
        assert sorted(os.listdir(tmp_path / "results")) == ["best"] * (number > 0)
        assert (tmp_path / "log.csv").exists() == (number > 0)
        process.calls.training = 1
        with during_training():
            (tmp_path / "results" / "best").touch()
            (tmp_path / "log.csv").touch()
            process.wrote(str(tmp_path / "log.csv"))
            os.makedirs(tmp_path / "logs" / "train", exist_ok=True)


def test_script_removes_what_its_training_has_made_also_in_a_later_launch(
    begin: Begin, tmp_path: Path
) -> None:
    path = tmp_path / "best.h5"
    for _ in range(2):  # the second one restores the training
        process = begin()
        process.calls.training = 1
        with during_training():
            path.touch()
            process.wrote(str(path))
        path.unlink()
        assert not path.exists()

    path.unlink()  # as a worker does that is slower than another one

    with pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "none")


def test_own_folder_may_be_made_and_removed_as_often_as_the_script_likes(
    begin: Begin, tmp_path: Path
) -> None:
    for _ in range(2):
        begin()
        for _ in range(2):
            os.mkdir(tmp_path / "scratch")
            shutil.rmtree(tmp_path / "scratch")
            assert not (tmp_path / "scratch").exists()


def test_later_launch_leaves_a_file_that_a_later_training_has_made_again(
    begin: Begin, tmp_path: Path
) -> None:
    """Each fold of a cross-validation saves, loads and removes the same file."""
    path = tmp_path / "best.keras"
    process = begin()
    for training in (1, 2):
        process.calls.training = training
        with during_training():
            path.write_text(f"fold {training}")
            process.wrote(str(path))
        if training == 1:
            os.remove(path)

    resumed = begin()  # the first training is over, the second one is not
    resumed.calls.training = 1
    os.remove(path)
    assert path.read_text() == "fold 2"
    resumed.calls.training = 2
    os.remove(path)
    assert not path.exists()
