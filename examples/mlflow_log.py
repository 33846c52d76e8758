"""Log a run to MLflow: one run for all workers and launches, each epoch once.

Copy this file beside your script, and give `fit` a `MlflowLog` in the place of `mlflow.autolog`:

    model.fit(x, y, epochs=10, callbacks=[MlflowLog("digits", {"batch": 64})])

The store is that of `MLFLOW_TRACKING_URI`.  `ci/mlflow` runs this file with two deaths
and a relaunch.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

import keras
from mlflow import MlflowClient

import holdfast

TAG = "holdfast"


class MlflowLog(keras.callbacks.Callback):  # type: ignore[misc]  # Keras has no types
    """Logs the metrics of each epoch, on the first worker; if that dies, on the next one."""

    def __init__(self, experiment: str, params: Mapping[str, Any] | None = None) -> None:
        """Make the log of one training; ``params`` are logged at its begin."""
        super().__init__()
        self._experiment = experiment
        self._params = dict(params or {})
        self._key = uuid.uuid4().hex  # the same on all workers, and after a relaunch

    def on_train_begin(self, logs: Any = None) -> None:
        """Make the run, or go on with that of an earlier launch."""
        if holdfast.is_first():
            client, run = self._open()
            client.update_run(run, status="RUNNING")
            for name, value in self._params.items():
                client.log_param(run, name, value)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Log what the run lacks: an epoch that is done again after a death has the same values."""
        if holdfast.is_first():
            client, run = self._open()
            for name, value in (logs or {}).items():
                if epoch not in {metric.step for metric in client.get_metric_history(run, name)}:
                    client.log_metric(run, name, value, step=epoch)

    def on_train_end(self, logs: Any = None) -> None:
        """End the run."""
        if holdfast.is_first():
            client, run = self._open()
            client.set_terminated(run)

    def _open(self) -> tuple[MlflowClient, str]:
        """Return the store, and the id of the run in it, which is made at the first need."""
        client = MlflowClient()
        found = client.get_experiment_by_name(self._experiment)
        where = found.experiment_id if found else client.create_experiment(self._experiment)
        runs = client.search_runs([where], f"tags.{TAG} = '{self._key}'")
        run = runs[0] if runs else client.create_run(where, tags={TAG: self._key})
        return client, run.info.run_id
