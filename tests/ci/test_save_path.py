"""The path of one save in a real job, as `ci/save_path.py` finds it."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.process, pytest.mark.mpi]


def test_a_worker_copies_and_the_writer_writes() -> None:
    command = [sys.executable, str(ROOT / "ci" / "save_path.py"), "--files"]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    files = defaultdict(set)
    for line in done.stdout.splitlines():
        kind, _, file = line.split()[:3]
        files[kind].add(file)
    assert "runtime/saving/agent_way.py" in files["worker"]
    assert {"runtime/committing/committer.py", "checkpoint/disk/disk.py"} <= files["writer"]
    elsewhere = files["worker"] | files["agent"] | files["supervisor"]
    assert not [
        name for name in elsewhere if name.startswith(("checkpoint/disk/", "checkpoint/upkeep/"))
    ]
    assert "checkpoint/store/store.py" not in elsewhere
