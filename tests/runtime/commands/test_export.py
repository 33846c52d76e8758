"""``holdfast export``: files for NumPy and Keras, whole or not there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from whole_save import save

from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.runtime.errors import ExitCode

Holdfast = Callable[..., tuple[int, str, str]]

SCRIPT = Path(__file__).parent / "scripts" / "fake_model.py"


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def test_npz_holds_every_tensor_and_is_the_same_each_time(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / "state.npz", tmp_path / "there.npz"]
    paths[1].write_text("old")
    for path in paths:
        assert holdfast("export", run_dir, "--to", path, "--step", 4, "--force")[0] == 0

    found = load(paths[0])
    assert sorted(found) == [
        "cursor/step",
        "optimizer/sgd/iterations",
        "weights/dense/bias",
        "weights/dense/kernel",
    ]
    assert found["cursor/step"] == 4
    assert found["weights/dense/kernel"][499, 6] == 3499
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_npz_takes_any_name_and_widens_what_numpy_does_not_know(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    state = {"file": np.zeros(2), "half": half, "none": np.zeros((0, 3))}
    save(CheckpointStore(tmp_path / "run"), state, header=Header("r", 1, 1))

    assert holdfast("export", tmp_path / "run", "--to", tmp_path / "x.npz")[0] == 0

    found = load(tmp_path / "x.npz")
    assert found["half"].dtype == np.float32
    assert found["half"].tolist() == [1.5, -2.0]
    assert found["none"].shape == (0, 3)
    assert found["file"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/x", "a\\..\\x", "C:/x"])
def test_name_that_would_leave_the_folder_it_is_unpacked_in_is_refused(
    holdfast: Holdfast, tmp_path: Path, name: str
) -> None:
    save(CheckpointStore(tmp_path / "run"), {name: np.zeros(2)}, header=Header("r", 1, 1))

    code, _, err = holdfast("export", tmp_path / "run", "--to", tmp_path / "x.npz")

    assert code == ExitCode.USAGE
    assert f"tensor {name!r} cannot be the name of a file" in err
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("name", ["a..b", "..", "...", ".hidden", "a/.../b", "c:d"])
def test_name_with_dots_is_exported(holdfast: Holdfast, tmp_path: Path, name: str) -> None:
    save(CheckpointStore(tmp_path / "run"), {name: np.zeros(2)}, header=Header("r", 1, 1))

    assert holdfast("export", tmp_path / "run", "--to", tmp_path / "x.npz")[0] == 0
    assert list(load(tmp_path / "x.npz")) == [name]


def test_weights_are_written_by_the_users_model(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    """The script trains outside a guard; it is run up to there."""
    target = tmp_path / "w.weights.h5"

    code, _, err = holdfast("export", run_dir, "--to", target, "--model", f"{SCRIPT}:model")

    assert (code, err) == (0, "")
    assert json.loads(target.read_text()) == {
        "dense/bias": 42.0,
        "dense/kernel": 6123250.0,
        "sgd/iterations": 6.0,
    }
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    ("function", "code", "complaint"),
    [
        ("wider", 2, "'weights/dense/bias' float32[8] is 'weights/dense/bias' float32[7] there"),
        ("nothing", 2, "has no function nothing"),
        ("not_a_function", 2, "has no function not_a_function"),
        ("no_model", 2, "makes a int"),
        ("not_built", 1, "raised TypeError"),
        ("fails", 1, "raised RuntimeError: no luck today"),
        ("not_compiled", 1, "could not be made: AttributeError"),
    ],
)
def test_bad_model_is_one_sentence_and_nothing_is_written(
    function: str, code: int, complaint: str, *, holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    target = tmp_path / "w.weights.h5"

    found = holdfast("export", run_dir, "--to", target, "--model", f"{SCRIPT}:{function}")

    assert found[0] == code
    assert complaint in found[2]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--to", "x.txt"], "no known format"),
        (["--to", "x.keras"], "a .keras file needs your model"),
        (["--to", "x"], "no known format; end it in .npz, .weights.h5 or .keras"),
        (["--to", "x.keras", "--model", "nowhere.py:f"], "nowhere.py does not exist"),
        (["--to", "x.keras", "--model", f"{SCRIPT}:f.g"], "give it as script.py:function"),
        (["--to", "x.keras", "--model", f"{SCRIPT}:f", "--input-shape", "3x"], "--input-shape"),
        (["--to", "nowhere/x.npz"], "nowhere is not a directory"),
        (["--to", "dangling.npz"], "exists; choose another --to"),
        (["--to", "there.npz"], "exists; choose another --to, or replace it with --force"),
        (["--to", "folder.npz", "--force"], "is a directory; choose another --to"),
        (["--to", "x.npz", "--step", "5"], "has no step 5"),
    ],
)
def test_bad_requests_are_one_sentence_and_exit_2(
    argv: list[str],
    complaint: str,
    holdfast: Holdfast,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(run_dir.parent)
    Path("there.npz").write_text("mine")
    Path("folder.npz").mkdir()
    Path("dangling.npz").symlink_to("nowhere")

    code, out, err = holdfast("export", run_dir, *argv)

    assert (code, out) == (2, "")
    assert complaint in err
    assert Path("there.npz").read_text() == "mine"
    names = sorted(path.name for path in Path().iterdir())
    assert names == ["dangling.npz", "folder.npz", "run", "there.npz"]


def test_script_alone_gives_the_model_of_its_trainer(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    target = tmp_path / "w.weights.h5"

    code, _, err = holdfast("export", run_dir, "--to", target, "--model", SCRIPT)

    assert (code, err) == (0, "")
    assert json.loads(target.read_text())["dense/bias"] == 42.0


def test_function_that_trains_is_refused(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before, _, training = SCRIPT.read_text().partition("Trainer(")
    body = training.partition("\n")[0]
    Path("m.py").write_text(f"{before}def main(): Trainer({body}")

    code, _, err = holdfast("export", run_dir, "--to", "w.keras", "--model", "m.py:main")

    assert code == 1
    assert "only asked for its model" in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.py", "run"]


def test_model_that_does_not_know_its_input_needs_its_shape(
    holdfast: Holdfast, run_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "m.py").write_text(SCRIPT.read_text().partition("Trainer(")[0])
    source = f"{tmp_path}/m.py:not_built"

    code, _, err = holdfast("export", run_dir, "--to", tmp_path / "w.keras", "--model", source)

    assert code == 2
    assert "--input-shape 28,28,1" in err


def test_damaged_step_is_not_exported(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    shard = next((run_dir / "checkpoints/step-000000000006").glob("shard-00001*"))
    os.truncate(shard, shard.stat().st_size - 1)

    code, _, err = holdfast("export", run_dir, "--to", tmp_path / "x.npz")

    assert code == 1
    assert "checkpoint step 6 is invalid: shard 1 has" in err
    assert not (tmp_path / "x.npz").exists()
