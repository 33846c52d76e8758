"""The file of a page is there whole or not at all, and no other file is touched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.page.html import write_page


def test_page_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")

    write_page(path, "new")

    assert path.read_text() == "new"
    assert os.listdir(tmp_path) == ["report.html"]


def test_link_that_another_user_has_put_there_is_replaced_and_not_followed(tmp_path: Path) -> None:
    victim, path = tmp_path / "victim", tmp_path / "report.html"
    victim.write_text("mine")
    path.symlink_to(victim)

    write_page(path, "new")

    assert victim.read_text() == "mine"
    assert path.read_text() == "new"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a-directory", "is a directory"),
        ("pipe", "no regular file"),
        ("nowhere/report.html", "No such file"),
    ],
)
def test_name_that_cannot_be_a_page_is_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "a-directory").mkdir()
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(UsageError, match=words):
        write_page(tmp_path / name, "new")

    assert sorted(os.listdir(tmp_path)) == ["a-directory", "pipe"]
