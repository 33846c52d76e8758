"""Search hyperparameters with Optuna: each trial is a run, which survives deaths and goes on.

    python examples/search.py --trials 8

Interrupt the search, or kill it.  The same command goes on: a trial that was running is taken up
again in its run directory.  `holdfast list search` shows the runs, and
`optuna-dashboard sqlite:///search/study.db` the study.  Optuna comes by `pip install optuna`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path

import keras
import numpy as np
import optuna

import holdfast

FOLDER = Path("search")
SIDE_BY_SIDE = 2
EACH = {"n": 2, "threads": 1, "quiet": True}
"""Options of each trial's job: here four cores are busy."""


def train(rate: float, units: int, epochs: int) -> None:
    """Train one trial, as a script of plain Keras: this is what the workers run."""
    keras.utils.set_random_seed(1)
    with np.load(Path(__file__).with_name("digits.npz")) as digits:
        x, y = digits["images"].reshape(-1, 64) / 16.0, digits["labels"]
    layers = [keras.layers.Dense(units, activation="relu"), keras.layers.Dense(10)]
    model = keras.Sequential([keras.Input((64,)), *layers])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    model.fit(x, y, batch_size=128, epochs=epochs, validation_split=0.2, verbose=0)


def search(trials: int, epochs: int) -> None:
    """Run trials side by side until the study has enough, those first that were running."""
    FOLDER.mkdir(exist_ok=True)
    study = optuna.create_study(
        storage=f"sqlite:///{FOLDER}/study.db", study_name="digits", load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=1), pruner=optuna.pruners.MedianPruner(),
    )  # fmt: skip
    left = [optuna.Trial(study, t._trial_id) for t in study.trials if not t.state.is_finished()]
    running: dict[Future[holdfast.LaunchResult], optuna.Trial] = {}
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        try:
            while True:
                while len(running) < SIDE_BY_SIDE and (left or len(study.trials) < trials):
                    trial = left.pop() if left else study.ask()
                    rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
                    units = trial.suggest_int("units", 8, 64)
                    argv = ["--rate", rate, "--units", units, "--epochs", epochs]
                    where = {"run_dir": run_dir(trial), **EACH}
                    running[pool.submit(holdfast.launch, __file__, *argv, **where)] = trial
                if not running:
                    break
                for job in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                    end(study, running.pop(job), job)
                for trial in running.values():
                    if is_hopeless(study, trial):
                        holdfast_("stop", "--no-wait", run_dir(trial))  # with a checkpoint
        except KeyboardInterrupt:
            for trial in running.values():  # their runs would go on without this program
                holdfast_("stop", "--no-wait", run_dir(trial))
            raise
    best = study.best_trial
    print(f"best: trial {best.number} has {best.value:.4f} by {best.params}")


def is_hopeless(study: optuna.Study, trial: optuna.Trial) -> bool:
    """Report the epochs that a run has had, and return whether the study wants to prune it."""
    report = holdfast_("report", "--json", run_dir(trial))  # nothing before the run has begun
    known = study.trials[trial.number].intermediate_values
    for epoch in json.loads(report)["epochs"] if report else []:
        if epoch["epoch"] not in known:
            trial.report(epoch["validation"]["loss"], epoch["epoch"])
    return trial.should_prune()


def end(study: optuna.Study, trial: optuna.Trial, job: Future[holdfast.LaunchResult]) -> None:
    """Tell the study what came of a trial."""
    if job.exception() is not None:
        print(f"trial {trial.number} failed: {job.exception()}")
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    elif job.result().exit_code == 0:
        study.tell(trial, job.result().history["val_loss"][-1])
    elif is_hopeless(study, trial):
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
    # Else somebody else has stopped the run: it goes on with the next search.


def run_dir(trial: optuna.Trial) -> Path:
    """Return where the run of a trial lives."""
    return FOLDER / f"trial-{trial.number}"


def holdfast_(*words: object) -> str:
    """Return what a command of holdfast prints, nothing if it fails."""
    line = [sys.executable, "-m", "holdfast", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--rate", type=float, help="given by the search to a trial")
    parser.add_argument("--units", type=int, help="given by the search to a trial")
    asked = parser.parse_args()
    if asked.rate is None:
        search(asked.trials, asked.epochs)
    else:
        train(asked.rate, asked.units, asked.epochs)
