"""A model's ``test_step`` on microbatches of validation data."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import tensorflow as tf

from holdfast.recovery.order import generator_seeds
from holdfast.runtime.custom import step_rules
from holdfast.runtime.custom.captured_step import Step, record
from holdfast.runtime.custom.step_logs import Number, StepLogs
from holdfast.runtime.custom.traced_graph import traced
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.model_call import Starts
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.model.tensors import Batch, flat_tensors, shape_key


class Evaluation:
    """The test step; a model that cannot be called has none, which is told when it is used."""

    def __init__(self, model: Any, generators: tuple[Any, ...], starts: Starts) -> None:
        self._step = Step(model, "test_step", generators, starts)
        self._graphs: dict[Hashable, Any] = {}
        self._logs: StepLogs | None = None

    @property
    def step(self) -> Step:
        """The step itself."""
        return self._step

    @property
    def graphs(self) -> tuple[Any, ...]:
        """The graphs that were traced so far."""
        return tuple(self._graphs.values())

    @property
    def numbers(self) -> tuple[Number, ...]:
        """Numbers of the logs."""
        return () if self._logs is None else self._logs.numbers

    @property
    def logs(self) -> StepLogs:
        """What the logs consist of."""
        if self._logs is None:
            raise ProgramError(
                f"{self._step.model.name!r} was not validated yet, so the logs of its "
                "test_step are not known: give fit() validation_data"
            )
        return self._logs

    def learn(self, batch: Microbatch) -> None:
        """Trace the step for microbatches of this shape."""
        self._graph(batch)

    def run(self, batch: Microbatch) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return metric variables and numbers of one microbatch, from zero."""
        seeds = tf.constant(generator_seeds(batch.seed, self._step.seeds), tf.int64)
        metrics, numbers = self._graph(batch)(flat_tensors(batch), seeds)
        return metrics, numbers

    def _graph(self, batch: Microbatch) -> Any:
        key = shape_key(batch)
        if key not in self._graphs:
            self._graphs[key] = traced(self._sums, batch, self._step.seeds)
        return self._graphs[key]

    def _sums(self, batch: Batch, seeds: Any) -> tuple[list[Any], list[Any]]:
        captured = self._step.capture(batch, seeds, record)
        step, name = self._step, self._step.name
        ours = {id(v) for v in (*captured.metrics, *step.generators)}
        step_rules.check_evaluation(
            [v for v, _ in captured.assigned.values() if id(v) not in ours], name
        )
        logs = StepLogs.of(step.model, captured.logs, captured.results, name)
        self._logs = self._logs or logs
        numbers = [tf.cast(tensor, tf.float32) for tensor in logs.numbers_in(captured.logs)]
        return [captured.added(v) for v in captured.metrics], numbers
