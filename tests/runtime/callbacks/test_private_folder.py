"""A worker's private folder is made where it is first needed, which may be within a hook."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.callbacks.first_files import FirstFiles, PrivateFolder, guarding


def not_first(tmp_path: Path) -> FirstFiles:
    return FirstFiles(False, PrivateFolder(tmp_path, 4), print)


def test_first_file_of_a_hook_is_staged_in_a_folder_that_is_made_for_it(tmp_path: Path) -> None:
    with guarding(not_first(tmp_path)):
        (tmp_path / "diary.json").write_text("{}")
        read = (tmp_path / "diary.json").read_text()

    assert read == "{}"
    assert not (tmp_path / "diary.json").exists()
    assert len(list((tmp_path / ".private" / "4").iterdir())) == 1


def test_a_file_that_is_changed_in_place_is_changed_in_a_copy(tmp_path: Path) -> None:
    real = tmp_path / "table.txt"
    real.write_text("old")

    with guarding(not_first(tmp_path)), real.open("r+") as file:
        file.seek(0, 2)
        file.write(" and new")

    assert real.read_text() == "old"
    (staged,) = (tmp_path / ".private" / "4").iterdir()
    assert staged.read_text() == "old and new"


def test_a_new_folder_is_made_within_a_hook(tmp_path: Path) -> None:
    files = not_first(tmp_path)

    with guarding(files):
        folder = files.new_folder()

        assert folder.is_dir()


def test_folders_of_the_dead_are_removed_and_the_last_one_takes_all_away(tmp_path: Path) -> None:
    folders = [PrivateFolder(tmp_path, worker) for worker in range(3)]
    for folder in folders:
        folder()

    folders[1].remove_dead([1])

    assert [path.name for path in (tmp_path / ".private").iterdir()] == ["1"]
    folders[1].remove()
    assert not (tmp_path / ".private").exists()


def test_worker_begins_without_what_one_of_its_name_has_left(tmp_path: Path) -> None:
    for worker in (0, 1, 7):
        (PrivateFolder(tmp_path, worker)() / "1-folder").mkdir()

    folder = PrivateFolder(tmp_path, 0)
    folder.begin([0, 1])

    assert [path.name for path in (tmp_path / ".private").iterdir()] == ["1"]
    assert FirstFiles(False, folder, print).new_folder().is_dir()


def test_worker_that_leaves_takes_nothing_from_the_others(tmp_path: Path) -> None:
    folders = [PrivateFolder(tmp_path, worker) for worker in range(2)]
    for folder in folders:
        (folder() / "file").write_text("staged")

    folders[0].remove()

    assert [path.name for path in (tmp_path / ".private").iterdir()] == ["1"]
    assert (folders[1]() / "file").read_text() == "staged"


def test_folder_that_another_worker_has_removed_is_made_again(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path, 3)
    folder()
    folder.remove()

    assert folder().is_dir()


def test_nothing_to_remove_is_no_error(tmp_path: Path) -> None:
    folder = PrivateFolder(tmp_path, 3)

    folder.remove_dead([3])
    folder.remove()

    assert list(tmp_path.iterdir()) == []


def test_run_directory_that_is_gone_is_an_error_and_no_endless_loop(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run is gone"):
        PrivateFolder(tmp_path / "run", 3)()
