"""A search by Optuna's own loop in one job: each trial is a training, and some are pruned."""

from __future__ import annotations

import keras
import numpy as np
import optuna

x = np.random.default_rng(0).normal(size=(128, 8)).astype("float32")
y = x.sum(1, keepdims=True)


class Prune(keras.callbacks.Callback):
    def __init__(self, trial: optuna.Trial) -> None:
        super().__init__()
        self.trial = trial

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        assert logs is not None
        self.trial.report(logs["loss"], epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned(f"in epoch {epoch}")


def objective(trial: optuna.Trial) -> float:
    rate = trial.suggest_float("rate", 1e-4, 1e-1, log=True)
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(rate), "mse")
    fitted = model.fit(x, y, epochs=3, batch_size=32, verbose=0, callbacks=[Prune(trial)])
    for epoch, loss in enumerate(fitted.history["loss"]):
        trial.report(loss, epoch)  # again: a training that is restored runs no hooks
    return float(fitted.history["loss"][-1])


optuna.logging.set_verbosity(optuna.logging.ERROR)
study = optuna.create_study(
    sampler=optuna.samplers.RandomSampler(seed=3),
    pruner=optuna.pruners.MedianPruner(n_startup_trials=2),
)
study.optimize(objective, n_trials=8)
print("trials", *(f"{t.state.name} {t.params['rate']!r}" for t in study.trials), study.best_value)
