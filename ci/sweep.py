#!/usr/bin/env python
"""A sweep of twelve trials through deaths: a worker, the head and client of a trial, and the sweep.

    ci/sweep.py

Then the study is opened with Optuna: each trial is there once, in the right state, and some were
pruned.  A trial that was struck has the digest of the same trial in a sweep that nothing struck.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import optuna
import psutil

TRIALS = 12
FAILS = 2
WITHIN_S = 1800.0

SCRIPT = f"""
import keras
import numpy as np

import holdfast

trial = holdfast.trial()
rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
units = trial.suggest_int("units", 8, 32)
if trial.number == {FAILS}:
    raise LookupError("no such sample")
keras.utils.set_random_seed(1)
x = np.random.default_rng(1).normal(size=(512, 8)).astype("float32")
y = (x[:, :1] * x[:, 1:2] > 0).astype("float32")
model = keras.Sequential([keras.layers.Dense(units, activation="relu"), keras.layers.Dense(1)])
model.compile(keras.optimizers.SGD(rate), keras.losses.BinaryCrossentropy(from_logits=True))
stop = trial.callback("val_loss")
model.fit(x, y, batch_size=32, epochs=6, validation_split=0.25, verbose=0, callbacks=[stop])
"""


def main() -> int:
    """Run both sweeps, compare them, and return an exit code."""
    with tempfile.TemporaryDirectory(prefix="holdfast-ci-sweep-") as folder:
        calm, struck = Path(folder, "calm"), Path(folder, "struck")
        for place in (calm, struck):
            place.mkdir()
            (place / "train.py").write_text(SCRIPT, encoding="utf-8")
        run(calm).wait(WITHIN_S)
        strike(struck)
        undisturbed, found = trials_in(calm), trials_in(struck)
    complaints = list(compare(undisturbed, found))
    states = [trial.state.name for trial in found]
    print(f"{len(found)} trials: {', '.join(f'{s} {states.count(s)}' for s in sorted({*states}))}")
    for complaint in complaints:
        print(f"BAD {complaint}")
    return 1 if complaints else 0


def run(place: Path) -> subprocess.Popen[bytes]:
    """Start a sweep in a folder, or go on with it."""
    line = [sys.executable, "-m", "holdfast", "sweep", "--study", "sqlite:///s.db"]
    line += ["--trials", str(TRIALS), "--parallel", "1", "-n", "2", "--threads", "1", "train.py"]
    return subprocess.Popen(line, cwd=place, stdin=subprocess.DEVNULL)


def strike(place: Path) -> None:
    """Kill a worker of trial 1, head and client of trial 4, and the sweep during trial 7."""
    sweep = run(place)
    await_first_step(sweep, place, 1)
    workers = [process for process in family(sweep) if process.name() == "holdfast-w1"]
    kill(workers)
    await_first_step(sweep, place, 4)
    job = [process for process in family(sweep) if process.pid != sweep.pid]
    kill([process for process in job if is_head_or_client(process)])
    await_first_step(sweep, place, 7)
    sweep.send_signal(signal.SIGKILL)
    sweep.wait()
    if run(place).wait(WITHIN_S) != 0:
        print("BAD the sweep that went on did not end well")


def family(sweep: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Return all processes below the sweep."""
    return psutil.Process(sweep.pid).children(recursive=True)


def is_head_or_client(process: psutil.Process) -> bool:
    """Return whether a process is the client of a job, or its head."""
    return process.name() in ("holdfast", "holdfast-agent") or "run" in process.cmdline()


def kill(processes: list[psutil.Process]) -> None:
    """Kill some processes, and say which."""
    print("kill", *(f"{process.name()} ({process.pid})" for process in processes))
    for process in processes:
        process.kill()


def await_first_step(sweep: subprocess.Popen[bytes], place: Path, number: int) -> None:
    """Wait until a trial has trained a step."""
    journal = place / "holdfast-train-sweep" / f"trial-{number}" / "journal.jsonl"
    deadline = time.monotonic() + WITHIN_S
    while not (journal.exists() and '"step"' in journal.read_text(errors="replace")):
        if time.monotonic() > deadline or sweep.poll() is not None:
            raise TimeoutError(f"trial {number} trains no step")
        time.sleep(0.05)


def trials_in(place: Path) -> list[Any]:
    """Return the trials of the study in a folder."""
    storage = f"sqlite:///{place / 's.db'}"
    return list(optuna.load_study(study_name="train", storage=storage).trials)


def compare(calm: list[Any], struck: list[Any]) -> Any:
    """Yield what is wrong with the trials of the sweep that was struck."""
    if [trial.number for trial in struck] != list(range(TRIALS)):
        yield f"trials {[trial.number for trial in struck]}"
    pruned = [trial.number for trial in struck if trial.state.name == "PRUNED"]
    if len(pruned) < 2:
        yield f"only {pruned} were pruned"
    for one, other in zip(calm, struck, strict=True):
        for what in ("state", "params", "value", "intermediate_values"):
            if getattr(one, what) != getattr(other, what):
                yield f"trial {one.number}: {what} {getattr(one, what)}, {getattr(other, what)}"
        if one.user_attrs.get("sha256") != other.user_attrs.get("sha256"):
            yield f"trial {one.number} has other bytes"
    if struck[FAILS].user_attrs.get("reason") != "LookupError: no such sample":
        yield f"trial {FAILS} failed for {struck[FAILS].user_attrs}"


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    sys.exit(main())
