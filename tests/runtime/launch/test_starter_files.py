"""``holdfast init``: files to begin with, which run as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from commands import holdfast_code

from holdfast.runtime.errors import ExitCode
from holdfast.runtime.launch.starter_files import FILES, write_starter_files


def test_no_file_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.py").write_text("mine")

    code = holdfast_code("init", str(tmp_path))

    assert code == ExitCode.USAGE
    assert f"{tmp_path / 'train.py'} would be overwritten" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


@pytest.mark.mpi
@pytest.mark.tensorflow
def test_the_files_run_to_their_end(tmp_path: Path) -> None:
    assert [path.name for path in write_starter_files(tmp_path / "first")] == [*FILES]

    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", "-n", "2", "train.py", "--epochs", "1"],
        cwd=tmp_path / "first", capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    epoch, last = done.stdout.splitlines()
    assert epoch.startswith("Epoch 1/1 - ")
    assert last.startswith("loss ")
