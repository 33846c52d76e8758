"""What cannot be read just now is not called damaged, and ends with the code to run again."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.errors import TRANSIENT
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.runtime.run import files as files_module

Holdfast = Callable[..., tuple[int, str, str]]
Fail = Callable[[str, int], None]

NUMBERS = sorted(TRANSIENT)


def _name(number: int) -> str:
    return errno.errorcode[number]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    """Let each opening of a checkpoint's file fail whose path has a word in it."""
    plain, listing = LocalFileSystem.open_read, LocalFileSystem.list

    def strike(word: str, number: int) -> None:
        def check(path: Path) -> None:
            if word in str(path):
                raise OSError(number, os.strerror(number))

        def open_read(files: LocalFileSystem, path: Path) -> int:
            check(path)
            return plain(files, path)

        def names(files: LocalFileSystem, path: Path) -> Any:
            check(path)
            return listing(files, path)

        monkeypatch.setattr(LocalFileSystem, "open_read", open_read)
        monkeypatch.setattr(LocalFileSystem, "list", names)

    return strike


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
def test_verify_tells_unread_steps_from_damaged_ones(
    holdfast: Holdfast, run_dir: Path, fail: Fail, number: int
) -> None:
    fail("step-000000000006/shard", number)

    code, out, err = holdfast("verify", run_dir)

    assert code == os.EX_TEMPFAIL
    assert "step 6: could not be read, and is not known to be damaged: cannot open" in out
    assert f"({_name(number)})" in out
    assert "step 4: valid" in out
    assert err == ""


def test_verify_of_a_damaged_and_an_unread_step_says_damaged(
    holdfast: Holdfast, run_dir: Path, fail: Fail
) -> None:
    (run_dir / "checkpoints/step-000000000004/MANIFEST.json").write_text("{}")
    fail("step-000000000006", errno.EIO)

    code, out, err = holdfast("verify", run_dir)

    assert code == 1
    assert "step 4: not valid" in out
    assert "step 6: could not be read" in out
    assert "remove " in err
    assert "step-000000000004" in err


def test_inspect_says_could_not_be_read(holdfast: Holdfast, run_dir: Path, fail: Fail) -> None:
    fail("step-000000000006", errno.ESTALE)

    code, out, err = holdfast("inspect", run_dir)
    _, document, _ = holdfast("inspect", run_dir, "--step", 4, "--json")

    newest = json.loads(document)["steps"][0]
    assert code == os.EX_TEMPFAIL
    assert "could not be read" in out
    assert "damaged" not in out
    assert "checkpoint step 6 could not be read: " in err
    assert "it is not known to be damaged" in err
    assert newest["damage"] is None
    assert "(ESTALE)" in newest["unread"]


def test_export_of_an_unread_step_can_be_tried_again(
    holdfast: Holdfast, run_dir: Path, fail: Fail, tmp_path: Path
) -> None:
    fail("step-000000000006/shard", errno.EMFILE)

    code, _, err = holdfast("export", run_dir, "--to", tmp_path / "w.npz")

    assert code == os.EX_TEMPFAIL
    assert "checkpoint step 6 could not be read" in err
    assert "use an older step" not in err
    assert not (tmp_path / "w.npz").exists()


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_steps_that_cannot_be_listed_just_now_are_not_absent(
    holdfast: Holdfast, run_dir: Path, fail: Fail, command: str
) -> None:
    fail("checkpoints", errno.EIO)

    code, _, err = holdfast(command, run_dir)

    assert code == os.EX_TEMPFAIL
    assert "cannot list" in err


@pytest.mark.parametrize("number", NUMBERS, ids=_name)
@pytest.mark.parametrize("command", ["verify", "inspect", "report", "status"])
def test_record_or_journal_that_cannot_be_read_just_now_is_no_usage(
    holdfast: Holdfast,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    number: int,
) -> None:
    def fail(folder: int, path: Path, flags: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files_module, "_open_name", fail)

    code, _, err = holdfast(command, run_dir)

    assert code == os.EX_TEMPFAIL
    assert "nothing is known to be damaged" in err
    assert f"({_name(number)})" in err
