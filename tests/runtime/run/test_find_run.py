"""Which paths are runs, and what is said of one that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.run.find_run import no_run


def begin(path: Path, name: str = "RUN.json") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / name).touch()
    return path


@pytest.mark.parametrize("name", ["RUN.json", "journal.jsonl", "checkpoints", "lease"])
def test_what_a_job_has_left_makes_a_run(tmp_path: Path, name: str) -> None:
    assert no_run(begin(tmp_path / "run", name)) is None


def test_path_that_is_no_run_is_told_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "place"
    reasons = [no_run(path)]
    path.touch()
    reasons.append(no_run(path))

    why = ("does not exist", "is no run: it is a file")
    assert reasons == [f"{path} {one}; give the directory of a run" for one in why]


def test_runs_inside_and_beside_are_named(tmp_path: Path) -> None:
    place = tmp_path / "place"
    runs = [begin(place / name) for name in ("b", "a")]
    beside = [begin(tmp_path / f"holdfast-{number}") for number in range(3)]

    assert no_run(place) == (
        f"{place} is no run: it has no RUN.json; runs near it: {runs[1]}, {runs[0]}, {beside[0]}"
    )
    (runs[0] / "inside").mkdir()
    assert f"runs near it: {runs[0]}" in str(no_run(runs[0] / "inside"))


def test_relative_path_names_runs_as_one_would_type_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begin(tmp_path / "holdfast-train")

    for path in (".", "train.py"):
        assert str(no_run(Path(path))).endswith("; runs near it: holdfast-train")
