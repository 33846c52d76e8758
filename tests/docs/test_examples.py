"""The examples run by the commands that they name, and a death on the way changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))
_PATH = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
_COMMAND = re.compile(r"^    ((?:holdfast run|python) .*)$", re.MULTILINE)


@pytest.mark.mpi
@pytest.mark.tensorflow
@pytest.mark.extended
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_commands_of_an_example_end_with_one_digest(example: Path, tmp_path: Path) -> None:
    commands = _COMMAND.findall(example.read_text(encoding="utf-8"))
    runs = [command for command in commands if command.startswith("holdfast")]
    printed = {}
    for command in commands:
        done = subprocess.run(
            command.replace("examples/", f"{example.parent}/"), shell=True, cwd=tmp_path,
            env=os.environ | {"PATH": _PATH}, stdin=subprocess.DEVNULL, check=False,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600.0,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        printed[command] = done.stdout

    digests = [re.findall(r"state sha256 (\w{64})", printed[run]) for run in runs]
    assert len(runs) == 2
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1
    assert " died after step" in printed[runs[1]]
