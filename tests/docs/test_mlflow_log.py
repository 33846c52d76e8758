"""The log of a run in MLflow, as examples has it, with a store in memory."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import holdfast

FOLDER = Path(__file__).parents[2] / "examples"


@dataclass
class Store:
    """MLflow's client, as far as the example calls it."""

    experiments: list[str] = field(default_factory=list)
    runs: dict[str, str] = field(default_factory=dict)
    """The filter that finds each run."""
    metrics: list[tuple[str, str, float, int]] = field(default_factory=list)
    status: str = ""

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        self.experiments.append(name)
        return name

    def search_runs(self, where: list[str], words: str) -> list[Any]:
        found = [run for run, tag in self.runs.items() if words == tag]
        return [SimpleNamespace(info=SimpleNamespace(run_id=run)) for run in found]

    def create_run(self, where: str, tags: dict[str, str]) -> Any:
        ((name, value),) = tags.items()
        run = f"run {len(self.runs)}"
        self.runs[run] = f"tags.{name} = '{value}'"
        return SimpleNamespace(info=SimpleNamespace(run_id=run))

    def update_run(self, run: str, status: str = "FINISHED") -> None:
        self.status = status

    set_terminated = update_run

    def log_param(self, run: str, name: str, value: object) -> None:
        pass

    def get_metric_history(self, run: str, name: str) -> list[Any]:
        return [SimpleNamespace(step=at) for _, known, _, at in self.metrics if known == name]

    def log_metric(self, run: str, name: str, value: float, step: int) -> None:
        self.metrics.append((run, name, value, step))


def test_run_is_one_and_has_each_epoch_once_through_deaths(monkeypatch: pytest.MonkeyPatch) -> None:
    store, first = Store(), [True]
    mlflow, keras = ModuleType("mlflow"), ModuleType("keras")
    mlflow.MlflowClient = lambda: store  # type: ignore[attr-defined]
    keras.callbacks = SimpleNamespace(Callback=object)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    monkeypatch.setitem(sys.modules, "keras", keras)
    monkeypatch.delitem(sys.modules, "mlflow_log", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setattr("uuid.uuid4", lambda: SimpleNamespace(hex="c0ffee"))
    monkeypatch.setattr(holdfast, "is_first", lambda: first[0])
    from mlflow_log import MlflowLog

    workers = [MlflowLog("digits", {"batch": 64}) for _ in range(3)]
    for worker, is_first, epochs in zip(
        workers, (True, False, True), ((0, 1), (1, 2), (1, 2, 3)), strict=True
    ):
        first[0] = is_first
        worker.on_train_begin()
        for epoch in epochs:
            worker.on_epoch_end(epoch, {"loss": 1.0 / (1 + epoch)})
    assert store.status == "RUNNING"
    workers[-1].on_train_end()

    assert store.metrics == [("run 0", "loss", 1.0 / (1 + epoch), epoch) for epoch in range(4)]
    assert (store.experiments, store.status) == (["digits"], "FINISHED")
