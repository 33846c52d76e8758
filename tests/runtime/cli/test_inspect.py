from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save

Holdfast = Callable[..., tuple[int, str, str]]


def test_newest_step_is_shown_in_full(holdfast: Holdfast, run_dir: Path) -> None:
    code, out, _ = holdfast("inspect", run_dir)

    assert code == 0
    for fact in (
        "not verified",
        "epochs complete: 1, 2 of 4 updates of the next",
        "global batch=30",
        "4 tensors, 14.0 kB",
        "kernel  float32[500, 7]  14.0 kB",
        "00aa11bb22cc33dd, saved by generation 1",
    ):
        assert fact in out
    assert out.count("weights") == 1


def test_json_holds_the_same(holdfast: Holdfast, run_dir: Path) -> None:
    (run_dir / "checkpoints/.bad-000000000002-g1-a1").mkdir()

    code, out, _ = holdfast("inspect", run_dir, "--json", "--step", 4)

    found = json.loads(out)
    assert code == 0
    assert found["run_id"] == "00aa11bb22cc33dd"
    assert [(step["step"], step["damage"]) for step in found["steps"]] == [(6, None), (4, None)]
    assert found["steps"][0]["completed"] > 1e9
    assert found["others"] == [".bad-000000000002-g1-a1"]
    assert found["step"]["step"] == 4
    assert found["step"]["position"] == {"epochs": 1, "updates": 0, "updates_per_epoch": 4}
    assert [tensor["name"] for tensor in found["step"]["tensors"]][-1] == "weights/dense/kernel"
    assert found["step"]["tensors"][-1]["pieces"] == 2


def test_damaged_step_is_listed_with_the_reason(holdfast: Holdfast, run_dir: Path) -> None:
    shard = next((run_dir / "checkpoints/step-000000000006").glob("shard-00001*"))
    shard.unlink()

    code, out, _ = holdfast("inspect", run_dir, "--json")

    newest, older = json.loads(out)["steps"]
    assert code == 0
    assert "shard-00001-of-00002.h5: No such file" in newest["damage"]
    assert older["damage"] is None


def test_step_without_a_valid_manifest_cannot_be_shown(holdfast: Holdfast, run_dir: Path) -> None:
    (run_dir / "checkpoints/step-000000000006/MANIFEST.json").write_text("{}")

    code, out, err = holdfast("inspect", run_dir)

    assert code == 1
    assert "damaged or cut short" in out
    assert "checkpoint step 6 is invalid" in err
    assert holdfast("inspect", run_dir, "--step", 4)[0] == 0


def test_name_that_looks_like_markup_is_printed_as_it_is(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    state = {"[bold]/[/red]": np.zeros(3)}
    save(CheckpointStore(tmp_path), state, header=Header("[run]", 1, 1))

    code, out, _ = holdfast("inspect", tmp_path)

    assert code == 0
    assert "[bold]" in out
    assert "[run]" in out


def test_cursor_is_shown_without_the_marks_of_python(holdfast: Holdfast, tmp_path: Path) -> None:
    cursor = {"step": 1, "metrics": {"of step": 1, "values": {"val/loss": 0.5}}, "best": None}
    save(CheckpointStore(tmp_path), {"a": np.zeros(3)}, header=Header("r", 1, 1), cursor=cursor)

    code, out, _ = holdfast("inspect", tmp_path)

    assert code == 0
    assert "metrics=(of step=1, values=(val/loss=0.5)), best=-" in " ".join(out.split())


def test_two_steps_differ_in_what_training_changes(holdfast: Holdfast, run_dir: Path) -> None:
    code, out, _ = holdfast("inspect", run_dir, "--diff", 4, 6, "--json")

    found = json.loads(out)
    assert code == 0
    assert (found["is_same"], found["same"]) == (False, 1)
    assert [(d["name"], d["elements"], d["largest"]) for d in found["differences"]] == [
        ("cursor/step", 1, None),
        ("optimizer/sgd/iterations", 1, None),
        ("weights/dense/bias", 7, 2.0),
    ]


def test_difference_of_two_runs_is_a_table(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(run_dir, tmp_path / "other")
    shutil.rmtree(other / "checkpoints/step-000000000006")
    state = {"weights/dense/bias": np.full(7, np.nan, np.float32), "new": np.zeros(2)}
    save(CheckpointStore(other), state, header=Header("x", 1, 9))

    code, out, _ = holdfast("inspect", run_dir, "--diff", run_dir, other)

    assert code == 0
    assert "nan on one side" in out
    assert "missing" in out
    assert "7 of 7" in out
    assert "0 tensors are the same, 5 are not" in out


def test_file_has_whole_names_of_tensors(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS")  # nobody says how wide it is, as in a file
    other = shutil.copytree(run_dir, tmp_path / "other")
    name = "optimizer/adam/" + "functional_1_" * 6 + "momentum"
    save(CheckpointStore(other), {name: np.zeros(2)}, header=Header("x", 1, 9))

    _, out, _ = holdfast("inspect", run_dir, "--diff", run_dir, other)

    assert name in out


def test_narrow_terminal_folds_names_and_cuts_none(
    holdfast: Holdfast, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")

    _, out, _ = holdfast("inspect", run_dir, "--diff", 4, 6)

    assert "…" not in out


def test_of_a_long_list_the_first_are_shown_and_json_has_all(
    holdfast: Holdfast, run_dir: Path
) -> None:
    numbers = list(range(1000, 1624))
    cursor = {"seed": 0, "random states": {"python": numbers}}
    header = Header("00aa11bb22cc33dd", 1, 8)
    save(CheckpointStore(run_dir), {"x": np.zeros(2)}, header=header, cursor=cursor)

    _, out, _ = holdfast("inspect", run_dir)
    _, whole, _ = holdfast("inspect", run_dir, "--json")

    assert "random states=(python=(1000, 1001, 1002, 1003, and 620 more))" in out
    assert json.loads(whole)["step"]["cursor"]["random states"]["python"] == numbers


def test_run_is_the_same_as_its_copy(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    other = shutil.copytree(run_dir, tmp_path / "other")

    code, out, _ = holdfast("inspect", run_dir, "--diff", 6, other)

    assert (code, out) == (0, "4 tensors are the same, 0 are not\n")


@pytest.mark.parametrize(
    ("argv", "code", "complaint"),
    [
        (["--diff", "4", "5"], 2, "has no step 5"),
        (["--diff", "4", "nowhere"], 2, "nowhere is no run: it is no directory"),
        (["--diff", "4", "6", "--step", "4"], 2, "exclude each other"),
    ],
)
def test_bad_comparisons_are_one_sentence(
    argv: list[str], code: int, complaint: str, holdfast: Holdfast, run_dir: Path
) -> None:
    found, out, err = holdfast("inspect", run_dir, *argv)

    assert (found, out) == (code, "")
    assert complaint in err


def test_damaged_contents_are_not_compared(holdfast: Holdfast, run_dir: Path) -> None:
    (run_dir / "checkpoints/step-000000000006/MANIFEST.json").write_text("{}")

    code, _, err = holdfast("inspect", run_dir, "--diff", 4, 6)

    assert code == 1
    assert "checkpoint step 6 is invalid" in err
