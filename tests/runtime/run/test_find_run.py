"""A path that is no run, a run with another key, and copies of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.errors import UsageError
from holdfast.runtime.run.find_run import (
    no_run,
    refuse_no_run,
)
from holdfast.runtime.run.run_directory import FORMAT, RunRecord

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
