"""``holdfast import``, with a job that stands in for the one that a supervisor would run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

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
    """Stands in for the supervisor: creates the run, and saves step 0 if it is to end well."""

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
    supervisor = ModuleType("holdfast.runtime.supervisor.job_run")
    supervisor.run_job = job  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "holdfast.runtime.supervisor.job_run", supervisor)
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

    assert holdfast("import", *options, "w.npz", "train.py", "-n", "9")[0] == ExitCode.DONE

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
    job.code, job.saves = ExitCode.PROGRAM_FAILED, False  # the supervisor says why

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
