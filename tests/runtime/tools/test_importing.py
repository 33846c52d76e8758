"""The first state of a run is read back as it lies on the disk, and a wrong request makes none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from holdfast.checkpoint.digest import state_sha256
from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.names import step_name
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor
from holdfast.runtime.errors import UsageError
from holdfast.runtime.options.job_options import JobOptions
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord
from holdfast.runtime.tools.importing import ImportedState, imported_state, run_import

RUN_ID = "00aa11bb22cc33dd"
STATE: dict[str, Tensor] = {
    "cursor/step": np.array(0),
    "optimizer/rate": np.array(0.5, np.float32),
    "weights/a": np.ones(3, np.float32),
    "weights/b": np.zeros((2, 5), np.float16),
}


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run that was imported, and has trained a step since."""
    path = tmp_path / "run"
    path.mkdir()
    RunDirectory(path).create_record(RunRecord(RUN_ID, FORMAT, 1.0, 2, 0, 1))
    save(CheckpointStore(path), STATE, header=Header(RUN_ID, 1, 0), writers=2)
    trained = STATE | {"weights/a": np.full(3, 9, np.float32)}
    save(CheckpointStore(path), trained, header=Header(RUN_ID, 1, 1))
    return path


def test_imported_state_is_that_of_step_0_whatever_has_come_since(run_dir: Path) -> None:
    nbytes = 8 + 4 + 12 + 20

    assert imported_state(run_dir) == ImportedState(4, 2, nbytes, state_sha256(STATE))


def test_state_that_does_not_verify_is_not_reported(run_dir: Path) -> None:
    shard = next((run_dir / "checkpoints" / step_name(0)).glob("shard-00001*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)

    with pytest.raises(CheckpointInvalid, match="shard"):
        imported_state(run_dir)


def test_state_of_another_run_is_not_reported(run_dir: Path) -> None:
    (run_dir / "RUN.json").unlink()
    RunDirectory(run_dir).create_record(RunRecord("another", FORMAT, 1.0, 2, 0, 1))

    with pytest.raises(CheckpointInvalid, match=f"it belongs to run {RUN_ID}, not to another"):
        imported_state(run_dir)


def test_run_under_another_name_is_still_the_run_itself(run_dir: Path, tmp_path: Path) -> None:
    link, script = tmp_path / "link", tmp_path / "train.py"
    link.symlink_to(run_dir)
    script.touch()

    with pytest.raises(UsageError, match=r"link is the run itself; choose another --run-dir"):
        run_import(JobOptions(script=script, run_dir=run_dir, initial=link))

    assert CheckpointStore(run_dir).steps() == (1, 0)


def test_run_that_has_trained_names_its_newest_step(run_dir: Path, tmp_path: Path) -> None:
    weights, script = tmp_path / "w.npz", tmp_path / "train.py"
    np.savez(weights, **STATE)
    script.touch()

    with pytest.raises(UsageError) as caught:
        run_import(JobOptions(script=script, run_dir=run_dir, initial=weights))

    assert str(caught.value) == (
        f"the run in {run_dir} has a checkpoint of step 1 already; resume it with "
        "`holdfast run`, choose another --run-dir, or set it aside with --fresh"
    )
