"""A path that is no run is refused in one sentence, which names the runs near it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.find_run import (
    claim,
    no_job,
    no_run,
    refuse_local_directory,
    refuse_no_run,
)
from holdfast.runtime.run.run_directory import RunDirectory


def begin(path: Path, name: str = "RUN.json") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).touch()
    return path


@pytest.mark.parametrize("name", ["RUN.json", "journal.jsonl", "checkpoints", "lease"])
def test_what_a_job_has_left_makes_a_run(tmp_path: Path, name: str) -> None:
    assert no_run(begin(tmp_path / "run", name)) is None


@pytest.mark.parametrize(
    ("kind", "why"),
    [("missing", "is no directory"), ("file", "is no directory"), ("empty", "has no RUN.json")],
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

    assert str(caught.value) == f"{path} is no run: it {why}; give the directory of a run"


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


def test_local_checkpoints_of_a_run_are_named(tmp_path: Path) -> None:
    local = tmp_path / "local"
    checkpoints = RunDirectory(local / "holdfast-0123").checkpoints_path
    checkpoints.mkdir(parents=True)
    (local / "mine" / checkpoints.name).mkdir(parents=True)

    assert no_run(local) == (
        f"{local} is no run: it has no RUN.json; runs near it: {checkpoints.parent}"
    )


ID = "3f0b5ec9f31f4da5"


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return begin(tmp_path / f"holdfast-{ID}" / "checkpoints" / "step-000000000040").parents[1]


def test_local_directory_of_a_run_has_checkpoints_and_no_job(
    local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert no_run(local) is None
    assert no_job(local) == (
        f"{local} is the local directory of run {ID}: its checkpoints here are seen by `holdfast "
        "inspect` and `holdfast verify`, and for all else give the run directory of that run"
    )
    monkeypatch.chdir(local)
    assert str(no_job(Path())).startswith(f". is the local directory of run {ID}: ")
    with pytest.raises(UsageError, match="is the local directory of run"):
        refuse_local_directory(local)


def test_local_directory_names_the_run_directory_that_it_belongs_to(local: Path) -> None:
    claim(local, Path("/data/run"))

    assert str(no_job(local)).endswith("and for all else give its run directory, /data/run")


@pytest.mark.parametrize("name", ["RUN.json", "journal.jsonl", "lease"])
def test_directory_of_a_job_is_no_local_directory(local: Path, name: str) -> None:
    begin(local, name)

    assert no_job(local) is None
    refuse_local_directory(local)


@pytest.mark.parametrize("name", ["holdfast-2", "holdfast-train", ID, f"holdfast-{ID}0"])
def test_copy_of_checkpoints_under_another_name_is_no_local_directory(
    local: Path, name: str
) -> None:
    assert no_job(local.rename(local.with_name(name))) is None
