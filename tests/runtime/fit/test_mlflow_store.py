"""A run of MLflow through several workers, a death and a relaunch: one run, each metric once."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.fit import mlflow_store
from holdfast.runtime.fit.mlflow_store import TAG, RunStore


@dataclass(frozen=True)
class Metric:
    """A metric as MLflow has it."""

    key: str
    value: float
    step: int


@dataclass
class FakeStore:
    """MLflow's store, in memory; all workers see the same one."""

    experiments: dict[str, str] = field(default_factory=dict)
    runs: dict[str, Any] = field(default_factory=dict)
    metrics: list[tuple[str, Metric]] = field(default_factory=list)
    tags: list[Any] = field(default_factory=list)

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        assert name not in self.experiments
        self.experiments[name] = name
        return name

    def create_run(
        self, experiment_id: str, user_id: str, start_time: int, tags: Sequence[Any], run_name: str
    ) -> Any:
        (tag,) = (tag for tag in tags if tag.key == TAG)
        info = SimpleNamespace(run_id=f"run-{len(self.runs)}", status="RUNNING")
        self.runs[info.run_id] = SimpleNamespace(info=info, key=tag.value)
        return self.runs[info.run_id]

    def search_runs(self, experiments: Any, words: str, view: Any, max_results: int) -> list[Any]:
        return [run for run in self.runs.values() if words == f"tags.`{TAG}` = '{run.key}'"]

    def get_run(self, run_id: str) -> Any:
        return self.runs[run_id]

    def update_run_info(self, run_id: str, status: str, end_time: Any, run_name: Any) -> Any:
        self.runs[run_id].info.status = status
        return self.runs[run_id].info

    def log_batch(self, run_id: str, metrics: Any, params: Any, tags: Any) -> None:
        self.metrics += [(run_id, metric) for metric in metrics]

    def get_metric_history(self, run_id: str, key: str) -> list[Metric]:
        return [metric for of, metric in self.metrics if of == run_id and metric.key == key]

    def set_tag(self, run_id: str, tag: Any) -> None:
        self.tags.append(tag)


@pytest.fixture(autouse=True)
def _entities(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands for the values of MLflow, which the tests do without."""
    entities = ModuleType("mlflow.entities")
    entities.__dict__.update(
        RunStatus=SimpleNamespace(RUNNING="RUNNING"),
        RunTag=lambda key, value: SimpleNamespace(key=key, value=value),
        ViewType=SimpleNamespace(ACTIVE_ONLY=1),
    )
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)


class Worker:
    """One worker's view of the store."""

    def __init__(self, inner: FakeStore, *, is_first: bool) -> None:
        self.is_first = is_first
        self.store = RunStore(inner, "4f0c2d", lambda: self.is_first)

    def make(self) -> str:
        return str(self.store.create_run("demo", "me", 0, [], "name").info.run_id)

    def log(self, run_id: str, *steps: int) -> None:
        for step in steps:
            self.store.log_metric(run_id, Metric("loss", 1 / (1 + step), step))


def steps_of(inner: FakeStore) -> list[int]:
    return [metric.step for _, metric in inner.metrics]


def test_all_workers_have_one_run_and_the_first_one_logs() -> None:
    inner = FakeStore()
    first, second = Worker(inner, is_first=True), Worker(inner, is_first=False)

    runs = [first.make(), second.make(), first.make(), second.make()]
    for worker in (first, second):
        worker.log(runs[0], 0, 1)
        worker.store.set_tag(runs[0], "tag")

    assert runs == ["run-0", "run-0", "run-1", "run-1"]
    assert steps_of(inner) == [0, 1]
    assert inner.tags == ["tag"]


def test_worker_that_takes_over_logs_what_the_dead_one_has_not() -> None:
    inner = FakeStore()
    first, second = Worker(inner, is_first=True), Worker(inner, is_first=False)
    run_id = first.make()
    assert second.make() == run_id
    first.log(run_id, 0, 1)
    second.log(run_id, 0, 1, 2)  # the first one died before it had logged epoch 2

    second.is_first = True
    second.log(run_id, 3)
    second.store.update_run_info(run_id, "FINISHED", 1, None)

    assert steps_of(inner) == [0, 1, 2, 3]
    assert inner.runs[run_id].info.status == "FINISHED"


def test_what_was_put_aside_is_logged_at_the_end_of_the_run() -> None:
    inner = FakeStore()
    first, second = Worker(inner, is_first=True), Worker(inner, is_first=False)
    run_id = first.make()
    second.make()
    second.log(run_id, 0)
    assert second.store.update_run_info(run_id, "FINISHED", 1, None).status == "RUNNING"

    second.is_first = True
    second.store.update_run_info(run_id, "FINISHED", 1, None)

    assert steps_of(inner) == [0]


def test_launch_that_does_steps_again_logs_them_once() -> None:
    inner = FakeStore()
    before = Worker(inner, is_first=True)
    run_id = before.make()
    before.log(run_id, 0, 1, 2)
    inner.runs[run_id].info.status = "KILLED"

    again = Worker(inner, is_first=True)
    assert again.make() == run_id
    again.log(run_id, 1, 2, 3)

    assert inner.runs[run_id].info.status == "RUNNING"
    assert steps_of(inner) == [0, 1, 2, 3]


def test_two_values_at_one_step_are_both_logged() -> None:
    inner = FakeStore()
    first = Worker(inner, is_first=True)
    run_id = first.make()

    first.store.log_batch(run_id, [Metric("loss", 1.0, 0), Metric("loss", 2.0, 0)])

    assert [metric.value for _, metric in inner.metrics] == [1.0, 2.0]


def test_experiment_is_made_by_the_first_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    inner = FakeStore()
    first, second = Worker(inner, is_first=True), Worker(inner, is_first=False)
    looks = []

    def look(name: str) -> Any:
        looks.append(name)
        if len(looks) == 2:
            first.store.create_experiment(name)
        return FakeStore.get_experiment_by_name(inner, name)

    monkeypatch.setattr(mlflow_store, "_LOOKS_EACH_S", 0.0)
    monkeypatch.setattr(inner, "get_experiment_by_name", look)

    assert second.store.create_experiment("demo") == "demo"
    assert len(looks) == 2


def test_store_that_is_half_made_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first worker makes the tables of a new one just then."""
    monkeypatch.setattr(mlflow_store, "_LOOKS_EACH_S", 0.0)
    half_made = [RuntimeError("table exists"), RuntimeError("no such table")]

    def build() -> str:
        if half_made:
            raise half_made.pop()
        return "store"

    with pytest.raises(RuntimeError, match="no such table"):
        mlflow_store._opened(build, lambda: True)
    assert mlflow_store._opened(build, lambda: False) == "store"
