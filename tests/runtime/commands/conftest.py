"""A run directory with checkpoints, made without a job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from commands import holdfast_code
from whole_save import save

from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor
from holdfast.runtime.run.run_directory import FORMAT, RunDirectory, RunRecord

RUN_ID = "00aa11bb22cc33dd"
CURSOR = {"seed": 0, "samples": 100, "global batch": 30, "microbatches": 2}


def _state(step: int) -> dict[str, Tensor]:
    return {
        "cursor/step": np.array(step),
        "optimizer/sgd/iterations": np.array(step),
        "weights/dense/bias": np.full(7, step, np.float32),
        "weights/dense/kernel": np.arange(3500, dtype=np.float32).reshape(500, 7),
    }


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run with checkpoints of steps 4 and 6 in two shards each."""
    path = tmp_path / "run"
    path.mkdir()
    RunDirectory(path).create_record(RunRecord(RUN_ID, FORMAT, 1.0, 2, 0, 1))
    for step in (4, 6):
        header = Header(RUN_ID, 1, step)
        cursor = CURSOR | {"step": step}
        save(CheckpointStore(path), _state(step), header=header, writers=2, cursor=cursor)
    return path


class Holdfast:
    """The command line, called as from a shell."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *argv: object) -> tuple[int, str, str]:
        """Return exit code, stdout and stderr; there is never a traceback."""
        code = holdfast_code(*argv)
        out, err = self._capsys.readouterr()
        assert "Traceback" not in out + err
        assert err.count("\n") <= 1
        return code, out, err


@pytest.fixture
def holdfast(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    monkeypatch.setenv("COLUMNS", "200")
    return Holdfast(capsys)
