"""The walks of a start, a save and a death in a real job, as `ci/walk.py` finds them."""

from __future__ import annotations

import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOT_ELSEWHERE = ("disk", "filesystem", "repair", "retention")
pytestmark = [pytest.mark.process, pytest.mark.mpi]


def files_of(walk: str) -> dict[str, set[str]]:
    """Return the files that run for a walk, by kind of process."""
    command = [sys.executable, str(ROOT / "ci" / "walk.py"), walk, "--files", "--quiet-s", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    files = defaultdict(set)
    for line in done.stdout.splitlines():
        kind, _, file = line.split()[:3]
        files[kind].add(file)
    return files


@pytest.mark.extended  # a tool that people call
def test_a_worker_copies_and_the_writer_writes() -> None:
    files = files_of("save")

    assert "runtime/saving/agent_saver.py" in files["worker"]
    assert {"runtime/saving/committer.py", "checkpoint/disk.py"} <= files["writer"]
    elsewhere = files["worker"] | files["agent"] | files["client"]
    assert not elsewhere & {f"checkpoint/{name}.py" for name in NOT_ELSEWHERE}
    assert "checkpoint/store.py" not in elsewhere
