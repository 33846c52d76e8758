"""The Keras suite has all of its scripts, and finds each difference between two runs."""

from __future__ import annotations

import ast
import json
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from suite_files import files_in, other_bytes, other_numbers
from suite_table import ROUNDING, SCRIPTS, SUITE, Nearness


def numbers(left: Path, right: Path, nearness: Nearness = ROUNDING) -> list[str]:
    return list(other_numbers(files_in(left), files_in(right), nearness))


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """Two runs with equal files of every kind."""
    folders = tmp_path / "mine", tmp_path / "theirs"
    for folder in folders:
        folder.mkdir()
        (folder / "history.json").write_text(json.dumps({"loss": [0.5, 0.25], "name": "a"}))
        (folder / "log.csv").write_text("epoch;loss\n0;0.5\n")
        np.savez(folder / "weights.npz", a=np.arange(3.0))
        with h5py.File(folder / "model.weights.h5", "w") as file:
            file["layers/dense/0"] = np.arange(4.0)
    return folders


def test_every_script_stands_in_the_table_once() -> None:
    paths = {script.path for script in SUITE.values()}

    assert len(SUITE) == 28
    assert paths == set(SCRIPTS.glob("*/*.py"))


@pytest.mark.parametrize("name", SUITE)
def test_scripts_are_ordinary_ones(name: str) -> None:
    """No script imports holdfast or hides its model in a function for it."""
    tree = ast.parse(SUITE[name].path.read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]

    assert all("holdfast" not in ast.unparse(node) for node in imports)
    assert any(".fit(" in ast.unparse(node) for node in tree.body)


def test_equal_runs_have_no_differences(runs: tuple[Path, Path]) -> None:
    mine, theirs = map(files_in, runs)

    assert list(other_bytes(mine, theirs)) == []
    assert numbers(*runs) == []


@pytest.mark.parametrize(
    ("loss", "said"),
    [(0.3, ["history.json: /loss/1 is 0.3, not 0.25"]), (0.250001, [])],
    ids=["far", "near"],
)
def test_a_number_far_away_is_named_with_its_place(
    runs: tuple[Path, Path], loss: float, said: list[str]
) -> None:
    (runs[0] / "history.json").write_text(json.dumps({"loss": [0.5, loss], "name": "a"}))
    mine, theirs = map(files_in, runs)

    assert numbers(*runs) == said
    assert list(other_bytes(mine, theirs)) == [
        f"history.json has other bytes (/loss/1 is {loss}, not 0.25)"
    ]


def test_files_that_only_one_run_has_are_named(runs: tuple[Path, Path]) -> None:
    (runs[0] / "log.csv").rename(runs[0] / "other.csv")

    assert numbers(*runs) == ["log.csv is missing", "other.csv is one too many"]


def test_rows_of_logs_and_arrays_of_weights_are_compared(runs: tuple[Path, Path]) -> None:
    (runs[0] / "log.csv").write_text("epoch;loss\n0;0.5\n0;0.5\n")
    np.savez(runs[0] / "weights.npz", a=np.arange(2.0))
    with h5py.File(runs[0] / "model.weights.h5", "w") as file:
        file["layers/dense/0"] = np.arange(4.0) * 2

    complaints = numbers(*runs)

    assert [complaint.split(":")[0] for complaint in complaints] == [
        "log.csv",
        "model.weights.h5",
        "weights.npz",
    ]
    assert "off by up to 3 of 3" in complaints[1]


def test_saved_models_are_compared_by_their_weights(runs: tuple[Path, Path]) -> None:
    for number, folder in enumerate(runs):
        with zipfile.ZipFile(folder / "model.keras", "w") as parts:
            parts.writestr("metadata.json", f"saved at {number}")
            parts.write(folder / "model.weights.h5", "model.weights.h5")
    mine, theirs = map(files_in, runs)

    assert list(other_bytes(mine, theirs)) == []
    assert numbers(*runs) == []
