"""Each way of Python to change files is put off on the other workers, and done if they lead."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.callbacks.first_files import FirstFiles, guarding

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


def files(tmp_path: Path, *, is_first: bool) -> FirstFiles:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    return FirstFiles(is_first, lambda: scratch, lambda text: None)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_is_made_by_the_first_worker_or_by_the_next_one(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    plain, folder = make(tmp_path / "plain"), make(tmp_path / "folder")
    before = picture(folder)
    here = files(tmp_path, is_first=False)
    change(plain)

    with guarding(here):
        change(folder)

    assert picture(folder) == before
    here.take_over()
    assert picture(folder) == picture(plain) != before


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_first_worker_makes_each_change_at_once(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    plain, folder = make(tmp_path / "plain"), make(tmp_path / "folder")
    change(plain)

    with guarding(files(tmp_path, is_first=True)):
        change(folder)

    assert picture(folder) == picture(plain)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_change_that_was_agreed_on_is_not_made_again(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    folder = make(tmp_path / "folder")
    before = picture(folder)
    here = files(tmp_path, is_first=False)
    with guarding(here):
        change(folder)

    here.agreed({})
    here.take_over()

    assert picture(folder) == before


def test_file_that_the_first_worker_has_removed_already_is_no_error_for_the_next_one(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path / "folder")
    here = files(tmp_path, is_first=False)
    with guarding(here):
        os.remove(folder / "old")
        os.mkdir(folder / "new")
        os.remove(folder / "other")
    os.remove(folder / "old")
    os.mkdir(folder / "new")

    here.take_over()

    assert not (folder / "other").exists()


def test_file_that_is_written_and_removed_in_one_round_never_appears(tmp_path: Path) -> None:
    folder = make(tmp_path / "folder")
    before = picture(folder)
    here = files(tmp_path, is_first=False)
    with guarding(here):
        (folder / "draft").write_text("draft")
        os.remove(folder / "draft")

    here.take_over()

    assert picture(folder) == before


def test_file_that_is_written_and_moved_in_one_round_appears_where_it_was_moved_to(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path / "folder")
    here = files(tmp_path, is_first=False)
    with guarding(here):
        (folder / "draft").write_text("draft")
        os.rename(folder / "draft", folder / "deeper")
        assert (folder / "deeper").read_text() == "draft"

    here.take_over()

    assert (folder / "deeper").read_text() == "draft"
    assert not (folder / "draft").exists()


def test_file_that_is_gone_is_an_error_unless_a_lost_launch_may_have_removed_it(
    tmp_path: Path,
) -> None:
    here = files(tmp_path, is_first=True)

    with guarding(here), pytest.raises(FileNotFoundError):
        os.remove(tmp_path / "gone")
    here.restore({})
    with guarding(here):
        os.remove(tmp_path / "gone")


def test_directory_of_on_train_begin_may_be_there_only_in_a_launch_that_resumes(
    tmp_path: Path,
) -> None:
    folder = make(tmp_path / "folder")
    here = files(tmp_path, is_first=True)
    here.restore({})

    with guarding(here):
        os.mkdir(folder / "empty")
    here.resumed()
    with guarding(here), pytest.raises(FileExistsError):
        os.mkdir(folder / "empty")


def test_file_with_an_opener_of_its_own_is_left_alone(tmp_path: Path) -> None:
    folder = make(tmp_path / "folder")
    here = files(tmp_path, is_first=False)

    with guarding(here), open(folder / "old", "w", opener=os.open) as file:
        file.write("opened")

    assert (folder / "old").read_text() == "opened"
