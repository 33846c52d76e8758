from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.signature import KeyFile
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.find_run import find_key, key_in, refuse_other_key


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


def test_run_without_a_key_file_has_no_key(tmp_path: Path) -> None:
    assert find_key(None, tmp_path) is None
    assert key_in(None) is None


def test_key_is_found_and_read_where_it_is_needed(path: Path, tmp_path: Path) -> None:
    found = find_key(path, tmp_path / "run")

    assert found is not None
    key = key_in(found)
    assert key is not None
    assert (found.path, found.key_id) == (str(path), key.id)


@pytest.mark.parametrize("run_dir", [".", "link"])
def test_key_in_the_run_directory_is_refused(path: Path, tmp_path: Path, run_dir: str) -> None:
    """A user who can write there could put another key in its place."""
    (tmp_path / "link").symlink_to(tmp_path)

    with pytest.raises(UsageError, match=r"lies in the run directory .*; move it elsewhere"):
        find_key(path, tmp_path / run_dir)


def test_key_that_cannot_be_used_is_a_usage_error(path: Path, tmp_path: Path) -> None:
    found = find_key(path, tmp_path / "run")
    path.unlink()

    with pytest.raises(UsageError, match="cannot be read: No such file"):
        find_key(path, tmp_path / "run")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        key_in(found)


@pytest.mark.parametrize("wanted", [None, "00aa"])
def test_run_is_resumed_with_the_key_that_it_was_begun_with(wanted: str | None) -> None:
    refuse_other_key(None if wanted is None else KeyFile("key", wanted), wanted, Path("run"))


@pytest.mark.parametrize(
    ("key_file", "wanted", "complaint"),
    [
        (None, "00aa", "was begun with key 00aa; give it with --key-file or HOLDFAST_KEY_FILE"),
        (KeyFile("key", "11bb"), "00aa", "was begun with key 00aa, key holds key 11bb"),
        (KeyFile("key", "11bb"), None, "names no key, .*, or the file was changed"),
    ],
)
def test_run_is_not_resumed_with_another_key_or_without(
    key_file: KeyFile | None, wanted: str | None, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        refuse_other_key(key_file, wanted, Path("run"))
