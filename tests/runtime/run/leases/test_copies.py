"""Copies of a run directory: where the run of a moved one is, and whose a local directory is."""

from __future__ import annotations

import dataclasses
import shutil
import threading
from pathlib import Path

import pytest

from holdfast.runtime.run import files, find_run
from holdfast.runtime.run.find_run import HOME_NAME, claim, moved_to, other_home
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord

RECORD = RunRecord("r", FORMAT, 0.0, microbatches=4, seed=0, threads=1)


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


@pytest.fixture
def local(tmp_path: Path) -> Path:
    path = tmp_path / "local" / "holdfast-r"
    path.mkdir(parents=True)
    return path


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


def test_local_directory_belongs_to_the_first_that_claims_it(
    run: RunDirectory, local: Path, tmp_path: Path
) -> None:
    copy = copy_of(run, tmp_path / "copy")
    before = other_home(local, copy.path, "r")

    claim(local, run.path)

    assert before is None
    assert other_home(local, copy.path, "r") == run.path
    assert other_home(local, run.path, "r") is None


def test_local_directory_goes_with_a_run_directory_that_is_moved(
    run: RunDirectory, local: Path, tmp_path: Path
) -> None:
    claim(local, run.path)
    moved = run.path.rename(tmp_path / "moved")
    begin_anew = other_home(local, moved, "r")

    claim(local, moved)
    back = copy_of(RunDirectory(moved), tmp_path / "run")

    assert begin_anew is None
    assert other_home(local, back.path, "r") == moved


def test_place_of_another_run_keeps_no_local_directory(
    run: RunDirectory, local: Path, tmp_path: Path
) -> None:
    claim(local, run.path)
    moved = run.path.rename(tmp_path / "moved")
    other = RunDirectory(tmp_path / "run")
    other.prepare()
    other.create_record(dataclasses.replace(RECORD, run_id="other"))

    assert other_home(local, moved, "r") is None


@pytest.mark.parametrize("content", ["[" * 100_000, "{}", "", '{"run_dir": 7}'])
def test_claim_that_makes_no_sense_is_none(
    run: RunDirectory, local: Path, tmp_path: Path, content: str
) -> None:
    (local / HOME_NAME).write_text(content)

    assert other_home(local, run.path, "r") is None
    claim(local, run.path)
    assert other_home(local, copy_of(run, tmp_path / "copy").path, "r") == run.path
