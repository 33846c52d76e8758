"""MLflow's tracking store for a run of several workers and launches: one run of MLflow for all.

Theory.  Every worker runs the whole script, and each launch runs it again.  So each of them would
make a run of MLflow, and log each epoch.  A script that names its store as ``holdfast+URI`` gets
this store in front of it.  The runs that a script makes have numbers, in their order, and carry the
id of holdfast's run as a tag.  By that a worker finds the run that another worker or launch has
made.  The first worker logs.  The others put their metrics aside, and the one that takes over logs
what is missing.  A metric counts as there if the run has its value at its step: a step that is done
again has the same value.

MLflow finds the store by the entry points of this distribution (group ``mlflow.tracking_store``).
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.runtime.run.script_record import ScriptRecord
from holdfast.runtime.training.stages import is_first
from holdfast.runtime.worker import context as contexts

PREFIX = "holdfast+"
TAG = "holdfast.run"

_MADE_WITHIN_S = 60.0
_LOOKS_EACH_S = 0.1
_MOST_ASIDE = 10_000
_WRITES = ("log_", "set_", "delete_", "link_", "record_")


def open_store(store_uri: str, artifact_uri: str | None = None) -> Any:
    """Return the store at ``holdfast+URI``; outside of a job that of the URI itself."""
    from mlflow.tracking._tracking_service.utils import _tracking_store_registry

    uri = store_uri.removeprefix(PREFIX)
    # Not by its `get_store`: that holds a lock while it asks for this store.
    build = _tracking_store_registry.get_store_builder(uri)
    run_id = contexts.run_id()
    if run_id is None:
        return build(store_uri=uri, artifact_uri=artifact_uri)
    run_dir = contexts.current().run_dir
    with ScriptRecord(run_dir / "mlflow.jsonl").turn():  # a database is not made by two at once
        inner = _opened(lambda: build(store_uri=uri, artifact_uri=artifact_uri), is_first)
    return RunStore(inner, run_id, is_first)


class RunStore:
    """A tracking store to which one worker writes for all; else it is the inner one."""

    def __init__(self, inner: Any, run_id: str, writes: Callable[[], bool]) -> None:
        """Stand before ``inner``; ``writes`` tells whether this worker is the one that writes."""
        self._inner = inner
        self._run_id = run_id
        self._writes = writes
        self._made = 0
        self._aside: deque[tuple[str, Sequence[Any]]] = deque(maxlen=_MOST_ASIDE)
        self._there: dict[tuple[str, str], set[tuple[int, str]]] = {}

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name.startswith(_WRITES) and not self._writes():
            return lambda *_, **__: None
        return found

    def create_experiment(self, name: str, *more: Any, **by: Any) -> Any:
        """Return the id of a new experiment, which the first worker makes."""
        if not self._writes():
            found = _awaited(lambda: self._inner.get_experiment_by_name(name))
            if found is not None:
                return found.experiment_id
        return self._inner.create_experiment(name, *more, **by)

    def create_run(
        self, experiment_id: str, user_id: Any, start_time: Any, tags: Sequence[Any], run_name: Any
    ) -> Any:
        """Return the run with the next number, which the first worker of the first launch makes."""
        from mlflow.entities import RunStatus, RunTag, ViewType

        self._made += 1
        key = f"{self._run_id}/{self._made}"
        words = f"tags.`{TAG}` = '{key}'"

        def find() -> Any:
            view = ViewType.ACTIVE_ONLY
            runs = self._inner.search_runs([experiment_id], words, view, max_results=1)
            return next(iter(runs), None)

        found = find() if self._writes() else _awaited(find)
        if found is None:
            tags = [*(tags or ()), RunTag(TAG, key)]
            return self._inner.create_run(experiment_id, user_id, start_time, tags, run_name)
        if self._writes():
            self._inner.update_run_info(found.info.run_id, RunStatus.RUNNING, None, None)
        return found

    def update_run_info(self, run_id: str, *more: Any, **by: Any) -> Any:
        """Change the state of a run, as at its end."""
        if not self._writes():
            return self._inner.get_run(run_id).info
        self._log_what_was_put_aside()
        return self._inner.update_run_info(run_id, *more, **by)

    def log_batch(
        self,
        run_id: str,
        metrics: Sequence[Any] = (),
        params: Sequence[Any] = (),
        tags: Sequence[Any] = (),
    ) -> None:
        """Log metrics that are not there yet, parameters and tags."""
        self._aside.append((run_id, list(metrics)))
        if self._writes():
            self._log_what_was_put_aside()
            if params or tags:
                self._inner.log_batch(run_id, [], list(params), list(tags))

    def log_metric(self, run_id: str, metric: Any) -> None:
        """Log one metric if it is not there yet."""
        self.log_batch(run_id, [metric])

    def log_batch_async(self, run_id: str, *more: Any, **by: Any) -> Any:
        """Log at once: a queue would outlive the worker's part as the one that writes."""
        from mlflow.utils.async_logging.run_operations import RunOperations

        self.log_batch(run_id, *more, **by)
        return RunOperations(operation_futures=[])

    def log_metric_async(self, run_id: str, metric: Any) -> Any:
        """Log one metric at once."""
        return self.log_batch_async(run_id, [metric])

    def _log_what_was_put_aside(self) -> None:
        while self._aside:
            run_id, metrics = self._aside.popleft()
            missing = self._missing(run_id, metrics)
            if missing:
                self._inner.log_batch(run_id, missing, [], [])

    def _missing(self, run_id: str, metrics: Sequence[Any]) -> list[Any]:
        """Return the metrics that the run lacks; they count as there from now on."""
        missing = []
        for metric in metrics:
            place = run_id, metric.key
            if place not in self._there:
                history = self._inner.get_metric_history(run_id, metric.key)
                self._there[place] = {_at(known) for known in history}
            if _at(metric) not in self._there[place]:
                self._there[place].add(_at(metric))
                missing.append(metric)
        return missing


def _at(metric: Any) -> tuple[int, str]:
    """Return what tells a metric from others of its name; no NaN equals another, but as text."""
    return metric.step, repr(float(metric.value))


def _opened(build: Callable[[], Any], writes: Callable[[], bool]) -> Any:
    """Return the inner store; a new one may be half made by the first worker just now."""

    def attempt() -> Any:
        with contextlib.suppress(Exception):
            return build()

    return (None if writes() else _awaited(attempt)) or build()


def _awaited(find: Callable[[], Any]) -> Any:
    """Return what another worker makes as soon as it is there; None if it does not come."""
    until = time.monotonic() + _MADE_WITHIN_S
    while (found := find()) is None and time.monotonic() < until:
        time.sleep(_LOOKS_EACH_S)
    return found
