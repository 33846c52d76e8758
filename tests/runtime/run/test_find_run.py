"""A path that is no run, a run with another key, and copies of a run."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from holdfast.checkpoint.signature import KeyFile
from holdfast.runtime.errors import UsageError
from holdfast.runtime.run import files, find_run
from holdfast.runtime.run.find_run import (
    find_key,
    key_in,
    moved_to,
    no_run,
    refuse_no_run,
    refuse_other_key,
)
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord

RECORD = RunRecord("r", FORMAT, 0.0, microbatches=4, seed=0, threads=1)
ID = "3f0b5ec9f31f4da5"


def begin(path: Path, name: str = "RUN.json") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).touch()
    return path


@pytest.mark.parametrize("name", ["RUN.json", "journal.jsonl", "checkpoints", "lease"])
def test_what_a_job_has_left_makes_a_run(tmp_path: Path, name: str) -> None:
    assert no_run(begin(tmp_path / "run", name)) is None


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("missing", "does not exist"),
        ("file", "is no run: it is a file"),
        ("empty", "is no run: it has no RUN.json"),
    ],
)
def test_path_that_is_no_run_is_refused_with_the_reason(
    tmp_path: Path, kind: str, why: str
) -> None:
    path = tmp_path / "place"
    if kind == "file":
        path.touch()
    elif kind == "empty":
        path.mkdir()

    with pytest.raises(UsageError) as caught:
        refuse_no_run(path)

    assert str(caught.value) == f"{path} {why}; give the directory of a run"


def test_runs_inside_and_beside_are_named(tmp_path: Path) -> None:
    place = tmp_path / "place"
    runs = [begin(place / name) for name in ("b", "a")]
    beside = [begin(tmp_path / f"holdfast-{number}") for number in range(3)]

    assert no_run(place) == (
        f"{place} is no run: it has no RUN.json; runs near it: {runs[1]}, {runs[0]}, {beside[0]}"
    )


def test_run_around_a_folder_is_named_first(tmp_path: Path) -> None:
    inside = begin(tmp_path / "run") / "checkpoints"
    inside.mkdir()

    assert f"runs near it: {tmp_path / 'run'}" in str(no_run(inside))


def test_relative_path_names_runs_as_one_would_type_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin(tmp_path / "holdfast-train")

    for path in (".", "train.py"):
        assert str(no_run(Path(path))).endswith("; runs near it: holdfast-train")


@pytest.fixture
def key_path(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(bytes(range(32)))
    path.chmod(0o600)
    return path


def test_run_without_a_key_file_has_no_key(tmp_path: Path) -> None:
    assert find_key(None, tmp_path) is None
    assert key_in(None) is None


def test_key_is_found_and_read_where_it_is_needed(key_path: Path, tmp_path: Path) -> None:
    found = find_key(key_path, tmp_path / "run")

    assert found is not None
    key = key_in(found)
    assert key is not None
    assert (found.path, found.key_id) == (key_path, key.id)


@pytest.mark.parametrize("run_dir", [".", "link"])
def test_key_in_the_run_directory_is_refused(key_path: Path, tmp_path: Path, run_dir: str) -> None:
    """A user who can write there could put another key in its place."""
    (tmp_path / "link").symlink_to(tmp_path)

    with pytest.raises(UsageError, match=r"lies in the run directory .*; move it elsewhere"):
        find_key(key_path, tmp_path / run_dir)


def test_key_that_cannot_be_used_is_a_usage_error(key_path: Path, tmp_path: Path) -> None:
    found = find_key(key_path, tmp_path / "run")
    key_path.unlink()

    with pytest.raises(UsageError, match="cannot be read: No such file"):
        find_key(key_path, tmp_path / "run")
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        key_in(found)


@pytest.mark.parametrize("wanted", [None, "00aa"])
def test_run_is_resumed_with_the_key_that_it_was_begun_with(wanted: str | None) -> None:
    refuse_other_key(None if wanted is None else KeyFile(Path("key"), wanted), wanted, Path("run"))


@pytest.mark.parametrize(
    ("key_file", "wanted", "complaint"),
    [
        (None, "00aa", "was begun with key 00aa; give it with --key-file or HOLDFAST_KEY_FILE"),
        (KeyFile(Path("key"), "11bb"), "00aa", "was begun with key 00aa, key holds key 11bb"),
        (KeyFile(Path("key"), "11bb"), None, "names no key, .*, or the file was changed"),
    ],
)
def test_run_is_not_resumed_with_another_key_or_without(
    key_file: KeyFile | None, wanted: str | None, complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        refuse_other_key(key_file, wanted, Path("run"))


def begun(path: Path) -> RunDirectory:
    """Return a run directory that a job has owned."""
    run = RunDirectory(path)
    run.prepare()
    run.create_record(RECORD)
    run.acquire_lease().release()
    return run


def copy_of(run: RunDirectory, path: Path) -> RunDirectory:
    shutil.copytree(run.path, path)
    return RunDirectory(path)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return begun(tmp_path / "run")


def test_copy_names_the_directory_that_it_was_made_of(run: RunDirectory, tmp_path: Path) -> None:
    copy = copy_of(run, tmp_path / "copy")

    assert moved_to(copy) == run.path
    assert moved_to(run) is None


def test_directory_that_was_moved_for_good_names_none(run: RunDirectory, tmp_path: Path) -> None:
    moved = RunDirectory(run.path.rename(tmp_path / "moved"))

    assert moved_to(moved) is None


def test_link_to_a_run_directory_is_no_copy(run: RunDirectory, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(run.path)

    assert moved_to(RunDirectory(link)) is None


@pytest.mark.parametrize("content", ["[" * 5000, "{}", "", '{"directory": 7}'])
def test_lease_that_makes_no_sense_names_none(
    run: RunDirectory, tmp_path: Path, content: str
) -> None:
    copy = copy_of(run, tmp_path / "copy")
    copy.lease_path.write_text(content)

    assert moved_to(copy) is None


def test_record_that_makes_no_sense_at_that_place_names_none(
    run: RunDirectory, tmp_path: Path
) -> None:
    copy = copy_of(run, tmp_path / "copy")
    run.record_path.write_text("[" * 5000)

    assert moved_to(copy) is None


def test_disk_that_hangs_at_that_place_names_none(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = copy_of(run, tmp_path / "copy")
    answers = threading.Event()
    monkeypatch.setattr(find_run, "_is_copy", lambda *_: answers.wait())
    monkeypatch.setattr(files, "WAITS_S", 0.2)

    assert moved_to(copy) is None
    answers.set()
