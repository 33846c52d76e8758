"""What a worker does is told by its phase, also between two trainings of its script."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NoReturn

import pytest
from configs import worker_config
from simulation import data

from holdfast.runtime.system.heartbeat import HeartbeatPage, Phase
from holdfast.runtime.training.stage import Stage
from holdfast.runtime.training.stages import Stages, alone
from holdfast.runtime.training.training_job import TrainingJob, TrainingRequest
from holdfast.runtime.worker import context as contexts
from holdfast.runtime.worker.context import WorkerContext


class BuiltIn(Exception):
    """The phase in which a replica was built."""


def build(_: TrainingJob, context: WorkerContext) -> NoReturn:
    raise BuiltIn(context.page.phase)


def test_next_training_is_no_conclusion_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "_planned_steps", 0)
    page = HeartbeatPage.create()
    page.phase = Phase.CONCLUDING
    stages = Stages.__new__(Stages)
    stages._context = SimpleNamespace(config=worker_config(), page=page)  # type: ignore[assignment]
    stages._stages = [Stage()]

    with pytest.raises(BuiltIn) as caught:
        stages._train(TrainingRequest(data(), None, global_batch=9, epochs=2), build, alone)

    page.close()
    assert caught.value.args == (Phase.STARTING,)
