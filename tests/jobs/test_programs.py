"""One program: what a job began with is what each launch runs, or a sentence says why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.testing import JobRequest, JobRun, start_job

pytestmark = pytest.mark.mpi

SCRIPT = """
import contextlib, importlib, sys
import numpy as np
import helper
from holdfast import ArrayData, ContributionShape, Trainer

RATE = 0.1

def edit():
    with contextlib.suppress(FileExistsError):
        open("edited", "x").close()
        for name in ("train.py", "helper.py", "parts/late.py", "named.py"):
            text = open(name).read()
            with open(name, "w") as file:
                file.write(text.replace("0.1", "0.7"))

class Replica:
    def __init__(self):
        self.weights, self.steps = np.zeros(4, np.float32), np.zeros(1, np.float32)

    shape = ContributionShape(gradient=4, metrics=1)

    def contribute(self, batch, out):
        off = batch.x @ self.weights - batch.y
        out[:4], out[4] = batch.x.T @ off, off @ off

    def evaluate(self, batch, out):
        out[:] = 0

    def apply(self, total, samples):
        self.steps += 1
        rate = RATE + helper.RATE
        if self.steps[0] >= 2:
            rate += importlib.import_module("nam" + "ed").RATE
        if self.steps[0] == 3 and "--edit" in sys.argv:
            edit()
        if self.steps[0] >= 6:
            rate += helper.late()
        self.weights = self.weights - np.float32(rate) * total[:4] / np.float32(samples)

    def results(self, sums, samples):
        return {"loss": float(sums[0]) / samples}

    def state(self):
        return {"weights": self.weights, "steps": self.steps}

    def load(self, state):
        self.weights, self.steps = (np.array(state[name]) for name in ("weights", "steps"))

x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
Trainer(Replica(), ArrayData(x, x[:, 0]), global_batch=20, epochs=5, save_every=2).run()
"""
"""Ten steps.  Its modules: one beside it, one of a package for a late step, one without a name."""

HELPER = """
RATE = 0.1

def late():
    from parts import late
    return late.RATE
"""


def write(folder: Path) -> Path:
    folder.mkdir()
    (folder / "parts").mkdir()
    texts = {"train.py": SCRIPT, "helper.py": HELPER, "parts/__init__.py": ""}
    for name, text in (
        texts | dict.fromkeys(("parts/late.py", "named.py"), "RATE = 0.1\n")
    ).items():
        (folder / name).write_text(text)
    return folder


def job(folder: Path, *argv: str, faults: tuple[str, ...] = (), again: str = "no") -> JobRun:
    request = JobRequest(
        script="train.py",
        run_dir="run",
        workers=2,
        microbatches=2,
        faults=faults,
        argv=argv,
        options=("--threads", "1"),
        environment={"HOLDFAST_AGAIN": again},
        directory=folder,
    )
    with start_job(request) as running:
        return running.wait()


ALL_DIE = ("kill worker=0 step=5", "kill worker=1 step=5")


def test_relaunch_runs_the_program_that_the_job_began_with(tmp_path: Path) -> None:
    undisturbed = job(write(tmp_path / "undisturbed"))
    assert undisturbed.exit_code == 0, undisturbed.stderr
    folder = write(tmp_path / "edited")

    struck = job(folder, "--edit", faults=ALL_DIE)

    assert struck.exit_code == 0, struck.stderr
    assert len(struck.report.relaunches) == 1
    assert "0.7" in (folder / "helper.py").read_text()
    assert struck.sha256 == undisturbed.sha256
    for name in ("train.py", "helper.py", "parts/late.py", "named.py"):
        line = f"{folder / name} has changed since this job began: the job goes on with what it was"
        assert struck.stderr.count(line) == 1, struck.stderr

    following = job(folder, "--edit", again="yes")
    assert following.exit_code == 0, following.stderr
    assert (
        "train.py and helper.py and parts/late.py have changed since this run" in following.stderr
    )
    assert "since this job began" not in following.stderr
