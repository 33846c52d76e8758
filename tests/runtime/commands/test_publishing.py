"""A published file appears whole under its name, or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from holdfast.runtime.commands.publishing import publish
from holdfast.runtime.errors import ProgramError, UsageError


def write_model(draft: Path, content: str = "new") -> None:
    """Make a directory as TensorFlow does."""
    (draft / "variables").mkdir(parents=True)
    (draft / "saved_model.pb").write_text(content)
    (draft / "variables" / "data").write_text(content)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_directory_replaces_a_saved_model_only_if_forced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    publish(target, write_model, is_forced=False)

    with pytest.raises(UsageError, match="exists"):
        publish(target, write_model, is_forced=False)
    publish(target, lambda draft: write_model(draft, "newer"), is_forced=True)

    assert (target / "variables" / "data").read_text() == "newer"
    assert names(tmp_path) == ["model"]


def test_directory_of_something_else_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()

    with pytest.raises(UsageError, match="not of a SavedModel"):
        publish(tmp_path / "home", write_model, is_forced=True)


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), UsageError, "No space left on device"),
        (ValueError("two\nlines"), ProgramError, "could not be made: ValueError"),
        (KeyboardInterrupt(), KeyboardInterrupt, "^$"),
    ],
)
def test_failure_leaves_what_was_there(
    error: BaseException, kind: type[BaseException], text: str, tmp_path: Path
) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write(draft: Path) -> None:
        draft.write_text("half")
        raise error

    with pytest.raises(kind, match=text):
        publish(target, write, is_forced=True)

    assert target.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_file_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "file"

    def write(draft: Path) -> None:
        draft.write_text("mine")
        target.write_text("theirs")

    with pytest.raises(UsageError, match="File exists"):
        publish(target, write, is_forced=False)

    assert target.read_text() == "theirs"
    assert names(tmp_path) == ["file"]
