"""A script by itself ends although its disk hangs in the removal of an old step.

A call into a disk of NFS that hangs can be killed, and one of FUSE cannot.  So the call hangs in
Python here.  The care of old steps has the lowest priority, so the end waits for the hang.

A busy disk takes fewer saves than the three that a run keeps.  So training waits for each one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.checkpoint.store import CheckpointStore

pytestmark = pytest.mark.mpi

EXAMPLE = Path(__file__).parents[3] / "examples" / "02_custom_replica.py"
LAST_STEP = 130
BOUND_S = 300.0
PROGRAM = """
import itertools, runpy, sys, threading
from holdfast.checkpoint.filesystem import LocalFileSystem
from holdfast.runtime.saving.maintenance import CheckpointMaintenance

example = runpy.run_path(sys.argv[0])
replica = example["SoftmaxRegression"]
plain_unlink, plain_close = LocalFileSystem.unlink, CheckpointMaintenance.close
plain_committed, plain_apply = CheckpointMaintenance.committed, replica.apply
hangs, saved, steps = threading.Event(), threading.Semaphore(0), itertools.count(1)

def unlink(files, path):
    if ".del-" in str(path):
        hangs.set()
        threading.Event().wait()
    plain_unlink(files, path)

def close(care, within_s):
    print("hangs" if hangs.wait(120.0) else "does not hang", file=sys.stderr, flush=True)
    plain_close(care, within_s)

def committed(care, step, places):
    plain_committed(care, step, places)
    saved.release()

def apply(self, total, samples):
    if next(steps) in range(26, 130, 25):
        saved.acquire()
    plain_apply(self, total, samples)

LocalFileSystem.unlink, CheckpointMaintenance.close = unlink, close
CheckpointMaintenance.committed, replica.apply = committed, apply
example["main"]()
"""


@pytest.mark.extended
def test_script_by_itself_leaves_a_removal_that_hangs(tmp_path: Path) -> None:
    """Beside a job that hangs in test_frozen_disk.py the whole directory hangs."""
    prelude = f"import sys; sys.argv[:] = [{str(EXAMPLE)!r}]"
    ended = subprocess.run(
        [sys.executable, "-c", prelude + PROGRAM],
        env={**os.environ, "HOLDFAST_RUN_DIR": str(tmp_path / "run")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )

    assert ended.returncode == 0, ended.stderr
    assert "hangs" in ended.stderr.splitlines()
    assert CheckpointStore(tmp_path / "run").steps()[0] == LAST_STEP
