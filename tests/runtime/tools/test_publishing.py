"""A published file appears whole under its name, or not at all."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

import pytest

from holdfast.checkpoint import filesystem
from holdfast.runtime.errors import ProgramError, UsageError
from holdfast.runtime.tools.exporting import publish


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


def write_file(draft: Path) -> None:
    draft.write_text("new")


def fail(_: Path) -> None:
    raise AssertionError("the target was refused, so nothing may be made for it")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("there", "/there exists; choose another --to, or replace it with --force"),
        ("dangling", "/dangling exists; choose another --to"),
        ("none/file", "/none/file cannot be written: .*/none is not a directory; choose another"),
        ("there/file", "/there/file cannot be written: .*/there is not a directory"),
    ],
)
def test_target_is_refused_before_any_work_is_done(
    name: str, complaint: str, tmp_path: Path
) -> None:
    (tmp_path / "there").write_text("mine")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")

    with pytest.raises(UsageError, match=complaint):
        publish(tmp_path / name, fail, is_forced=False)

    assert names(tmp_path) == ["dangling", "there"]


def test_draft_lies_beside_the_target_and_has_its_name(tmp_path: Path) -> None:
    """Keras looks at the suffix, and a rename needs the same file system."""
    drafts: list[Path] = []

    def write(draft: Path) -> None:
        drafts.append(draft)
        draft.write_text("new")

    publish(tmp_path / "w.weights.h5", write, is_forced=False)

    (draft,) = drafts
    assert draft.parent.parent == tmp_path
    assert draft.name == "w.weights.h5"
    assert names(tmp_path) == ["w.weights.h5"]


def test_others_neither_reach_nor_guess_the_draft(tmp_path: Path) -> None:
    """Keras opens a name that it is given, and follows a link that was planted there."""
    folders: list[tuple[str, int]] = []

    def write(draft: Path) -> None:
        folders.append((draft.parent.name, stat.S_IMODE(draft.parent.stat().st_mode)))
        draft.write_text("new")

    before = os.umask(0)
    try:
        for name in ("one", "two"):
            publish(tmp_path / name, write, is_forced=False)
    finally:
        os.umask(before)

    assert [mode for _, mode in folders] == [0o700, 0o700]
    (one, _), (two, _) = folders
    assert one != two
    assert one.startswith(".holdfast-export-")


def test_file_that_appears_meanwhile_stays_where_rename_would_replace_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS has no rename that spares what is there."""
    monkeypatch.setattr(filesystem, "renameat2", lambda source, target: False)
    target = tmp_path / "file"

    def write(draft: Path) -> None:
        draft.write_text("mine")
        target.write_text("theirs")

    with pytest.raises(UsageError, match="File exists"):
        publish(target, write, is_forced=False)

    assert target.read_text() == "theirs"


def test_file_system_without_links_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)

    publish(tmp_path / "file", write_file, is_forced=False)

    assert (tmp_path / "file").read_text() == "new"
    assert names(tmp_path) == ["file"]


def test_link_is_replaced_and_not_the_file_that_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "precious")

    publish(tmp_path / "link", write_file, is_forced=True)

    assert not (tmp_path / "link").is_symlink()
    assert ((tmp_path / "link").read_text(), (tmp_path / "precious").read_text()) == ("new", "mine")


def test_directory_comes_back_if_the_new_one_cannot_have_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, rename = tmp_path / "model", Path.rename
    write_model(target, "old")

    def rename_others(path: Path, new: Path) -> Path:
        if (path / "saved_model.pb").read_text() == "new":
            raise OSError(errno.EIO, "Input/output error")
        return rename(path, new)

    monkeypatch.setattr(Path, "rename", rename_others)
    with pytest.raises(UsageError, match="/model cannot be written: Input/output error; choose"):
        publish(target, write_model, is_forced=True)

    assert (target / "variables" / "data").read_text() == "old"
    assert names(tmp_path) == ["model"]


def test_refusal_of_the_writer_reaches_the_user_as_it_is(tmp_path: Path) -> None:
    def write(draft: Path) -> None:
        draft.write_text("half")
        raise UsageError("the model is another one")

    with pytest.raises(UsageError, match=r"^the model is another one$"):
        publish(tmp_path / "file", write, is_forced=False)

    assert names(tmp_path) == []


def test_writer_that_makes_nothing_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    with pytest.raises(UsageError, match="No such file or directory"):
        publish(tmp_path / "file", lambda _: None, is_forced=True)

    assert (tmp_path / "file").read_text() == "old"
