"""``holdfast import`` and ``export``: a job stands in for a real one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from holdfast.checkpoint.digest import state_sha256
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor
from holdfast.runtime.errors import ExitCode
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.system.own_process import usable_cores

Holdfast = Callable[..., tuple[int, str, str]]

STATE: dict[str, Tensor] = {
    "cursor/step": np.array(0),
    "optimizer/rate": np.array(0.5, np.float32),
    "weights/a": np.ones(3, np.float32),
}


class Job:
    """Stands in for the client: creates the run, and saves step 0 if it is to end well."""

    def __init__(self) -> None:
        self.asked: list[JobOptions] = []
        self.code = ExitCode.STOPPED_EARLY
        self.saves = True

    def __call__(self, config: JobOptions) -> ExitCode:
        self.asked.append(config)
        directory = RunDirectory(config.run_dir)
        directory.prepare()
        if config.fresh:
            directory.set_aside()
        directory.create_record(RunRecord("r", FORMAT, 1.0, config.new_microbatches, 0, 1))
        directory.journal_path.write_text("")
        directory.checkpoints_path.mkdir()
        if self.saves:
            save(CheckpointStore(config.run_dir), STATE, header=Header("r", 1, 0))
        return self.code


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    job = Job()
    client = ModuleType("holdfast.runtime.head.client")
    client.run_job = job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holdfast.runtime.head.client", client)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    np.savez(tmp_path / "w.npz", **STATE)
    return job


def _is_empty(run_dir: Path) -> bool:
    return not any((run_dir / name).exists() for name in ("RUN.json", "journal.jsonl"))


def test_says_what_was_imported_and_how_to_go_on(
    job: Job, holdfast: Holdfast, tmp_path: Path
) -> None:
    options = ("-n", 3, "--run-dir", "out dir", "--seed", 4)

    code, out, err = holdfast("import", *options, "w.npz", "train.py", "--epochs", 9)

    assert (code, err) == (ExitCode.DONE, "")
    assert out.splitlines() == [
        f"step 0 of {tmp_path}/out dir has the weights of w.npz, verified",
        "3 tensors, 1 of them weights, 24 B",
        f"sha256 {state_sha256(STATE)}",
        "go on with: holdfast run -n 3 --run-dir 'out dir' train.py --epochs 9",
    ]


def test_is_a_job_of_one_worker_on_the_terms_of_the_run(
    job: Job, holdfast: Holdfast, tmp_path: Path
) -> None:
    options = ["-n", "3", "--seed", "4", "--preload", "numpy", "--mpiexec", "/opt/mpiexec", "-v"]

    assert holdfast("import", *options, "--", "w.npz", "train.py", "-n", "9")[0] == ExitCode.DONE

    assert job.asked == [
        JobOptions(
            script=tmp_path / "train.py",
            run_dir=tmp_path / "holdfast-train",
            argv=("-n", "9"),
            workers=1,
            microbatches=3,
            threads=max(1, usable_cores() // 3),
            seed=4,
            initial=tmp_path / "w.npz",
            preload=("numpy",),
            mpiexec=Path("/opt/mpiexec"),
            fresh=True,
            shrink=False,
            verbose=True,
            trains=False,
        )
    ]


def test_options_of_run_in_the_file_hold_here_too(
    job: Job, holdfast: Holdfast, tmp_path: Path
) -> None:
    """Otherwise the run would be made on other terms than it is resumed on."""
    (tmp_path / "holdfast.toml").write_text(
        '[run]\nworkers = 2\nmicrobatches = 12\nthreads = 3\nsave-every = "1h"\n'
        "[import]\nthreads = 4\n"
    )

    holdfast("import", "w.npz", "train.py")

    assert (job.asked[0].microbatches, job.asked[0].threads) == (12, 4)
    assert job.asked[0].save_every is None


def test_step_of_another_run(job: Job, holdfast: Holdfast, run_dir: Path) -> None:
    assert holdfast("import", "--step", 4, "--run-dir", "new", run_dir, "train.py")[0] == 0
    assert (job.asked[0].initial, job.asked[0].initial_step) == (run_dir, 4)


def test_run_that_has_checkpoints_is_left_alone_unless_fresh(
    job: Job, holdfast: Holdfast, run_dir: Path
) -> None:
    line = ("--run-dir", run_dir, "w.npz", "train.py")

    refused = holdfast("import", *line)
    kept = CheckpointStore(run_dir).steps()
    done = holdfast("import", "--fresh", *line)

    assert refused[0] == ExitCode.USAGE
    assert "has a checkpoint of step 6 already; resume it" in refused[2]
    assert kept == (6, 4)
    assert done[0] == ExitCode.DONE
    assert CheckpointStore(run_dir).steps() == (0,)
    assert CheckpointStore(run_dir / "previous-1").steps() == (6, 4)


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (["x.npz", "train.py"], "x.npz does not exist; begin with"),
        ([".", "train.py"], "is no run: it has no RUN.json"),
        (["--step", "2", "w.npz", "train.py"], "has no step 2"),
        (["w.npz", "none.py"], "none.py does not exist"),
        (["w.npz", "--fresh", "train.py"], "--fresh stands behind w.npz; options come before"),
        (["w.npz"], "Missing argument 'SCRIPT'"),
        (["--microbatches", "0", "w.npz", "train.py"], "--microbatches must be at least 1"),
    ],
)
def test_bad_request_makes_nothing(
    line: list[str], complaint: str, job: Job, holdfast: Holdfast, tmp_path: Path
) -> None:
    code, out, err = holdfast("import", "--run-dir", tmp_path / "new", *line)

    assert (code, out, job.asked) == (ExitCode.USAGE, "", [])
    assert complaint in err
    assert not (tmp_path / "new").exists()


def test_file_in_place_of_the_run_directory(job: Job, holdfast: Holdfast, tmp_path: Path) -> None:
    code, _, err = holdfast("import", "--run-dir", "train.py", "w.npz", "train.py")

    assert (code, job.asked) == (ExitCode.USAGE, [])
    assert f"run directory {tmp_path}/train.py cannot be used" in err


def test_run_cannot_be_imported_into_itself(job: Job, holdfast: Holdfast, run_dir: Path) -> None:
    code, _, err = holdfast("import", "--fresh", "--run-dir", run_dir, run_dir, "train.py")

    assert code == ExitCode.USAGE
    assert "is the run itself" in err
    assert CheckpointStore(run_dir).steps() == (6, 4)


@pytest.mark.parametrize(
    "code", [ExitCode.USAGE, ExitCode.PROGRAM_FAILED, ExitCode.TERMINATED, ExitCode.STOPPED_EARLY]
)
def test_job_that_has_saved_nothing_leaves_no_run(
    code: ExitCode, job: Job, holdfast: Holdfast, tmp_path: Path
) -> None:
    """Its own words are on stderr by then; the next import may fix other terms."""
    job.code, job.saves = code, False
    failed = holdfast("import", "w.npz", "train.py")
    is_empty = _is_empty(tmp_path / "holdfast-train")
    job.code, job.saves = ExitCode.STOPPED_EARLY, True

    again = holdfast("import", "--microbatches", "5", "w.npz", "train.py")

    assert failed == (code, "", "")
    assert is_empty
    assert again[0] == ExitCode.DONE
    assert not (tmp_path / "holdfast-train" / "previous-1").exists()


def test_script_that_trains_nothing(job: Job, holdfast: Holdfast, tmp_path: Path) -> None:
    job.code, job.saves = ExitCode.PROGRAM_FAILED, False  # the client says why

    assert holdfast("import", "w.npz", "train.py") == (ExitCode.PROGRAM_FAILED, "", "")
    assert _is_empty(tmp_path / "holdfast-train")


def test_job_that_was_killed_after_it_had_saved_keeps_its_code(
    job: Job, holdfast: Holdfast, tmp_path: Path
) -> None:
    job.code = ExitCode.TERMINATED

    assert holdfast("import", "w.npz", "train.py") == (ExitCode.TERMINATED, "", "")
    assert CheckpointStore(tmp_path / "holdfast-train").steps() == (0,)


def test_run_without_a_checkpoint_is_set_aside(
    job: Job, holdfast: Holdfast, tmp_path: Path
) -> None:
    """It died before its first checkpoint; its terms need not be the new ones."""
    directory = RunDirectory(tmp_path / "holdfast-train")
    directory.prepare()
    directory.create_record(RunRecord("old", FORMAT, 1.0, 7, 0, 1))

    assert holdfast("import", "w.npz", "train.py")[0] == ExitCode.DONE
    assert (directory.path / "previous-1" / "RUN.json").exists()


SCRIPT = Path(__file__).parent / "scripts" / "fake_model.py"


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as archive:
        return dict(archive)


def test_npz_holds_every_tensor(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    code, out, _ = holdfast("export", run_dir, "--to", tmp_path / "state.npz", "--step", 4)

    found = load(tmp_path / "state.npz")
    assert (code, out) == (0, f"step 4, verified, is now {tmp_path}/state.npz\n")
    assert sorted(found) == [
        "cursor/step",
        "optimizer/sgd/iterations",
        "weights/dense/bias",
        "weights/dense/kernel",
    ]
    assert found["cursor/step"] == 4
    assert found["weights/dense/kernel"][499, 6] == 3499


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


def test_same_step_makes_the_same_file(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    paths = [tmp_path / "a.npz", tmp_path / "b.npz"]
    for path in paths:
        assert holdfast("export", run_dir, "--to", path)[0] == 0

    assert paths[0].read_bytes() == paths[1].read_bytes()


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
        (["--to", "x.keras"], "the format keras needs your model"),
        (["--to", "x"], "the format savedmodel needs your model"),
        (["--to", "x.h5", "--format", "weights", "--model", f"{SCRIPT}:f"], "end in .weights.h5"),
        (["--to", "x.keras", "--model", "nowhere.py:f"], "nowhere.py does not exist"),
        (["--to", "x.keras", "--model", f"{SCRIPT}:f.g"], "give it as script.py:function"),
        (["--to", "x.keras", "--model", f"{SCRIPT}:f", "--input-shape", "3x"], "--input-shape"),
        (["--to", "nowhere/x.npz"], "nowhere is not a directory"),
        (["--to", "there.npz"], "exists; choose another --to, or replace it with --force"),
        (["--to", "folder.npz", "--force"], "is a directory, and not of a SavedModel"),
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

    code, out, err = holdfast("export", run_dir, *argv)

    assert (code, out) == (2, "")
    assert complaint in err
    assert Path("there.npz").read_text() == "mine"
    assert sorted(path.name for path in Path().iterdir()) == ["folder.npz", "run", "there.npz"]


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
    argv = [
        "export",
        run_dir,
        "--to",
        tmp_path / "w.keras",
        "--model",
        f"{tmp_path}/m.py:not_built",
    ]

    code, _, err = holdfast(*argv)

    assert code == 2
    assert "--input-shape 28,28,1" in err


def test_force_replaces(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    target = tmp_path / "there.npz"
    target.write_text("old")

    assert holdfast("export", run_dir, "--to", target, "--force")[0] == 0
    assert load(target)["cursor/step"] == 6


def test_damaged_step_is_not_exported(holdfast: Holdfast, run_dir: Path, tmp_path: Path) -> None:
    shard = next((run_dir / "checkpoints/step-000000000006").glob("shard-00001*"))
    os.truncate(shard, shard.stat().st_size - 1)

    code, _, err = holdfast("export", run_dir, "--to", tmp_path / "x.npz")

    assert code == 1
    assert "checkpoint step 6 is invalid: shard 1 has" in err
    assert not (tmp_path / "x.npz").exists()
