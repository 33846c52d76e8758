"""A directory that another worker has made counts as made."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.fit.directories import share_directories

_LONG_AGO, _NEVER = 0.0, float("inf")


@pytest.fixture
def run_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run directory; ``os.mkdir`` is Python's own again after the test."""
    monkeypatch.setattr(os, "mkdir", os.mkdir)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    return run_dir


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


def test_temporary_directories_are_never_shared(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share_directories(run_dir, _LONG_AGO)
    names = iter(["same", "same", "other"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: names)
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
