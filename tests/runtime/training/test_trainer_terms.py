"""What the trainer takes, and what it says of the rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from configs import worker_config
from simulation import TinyReplica, data

from holdfast.recovery.ledger import Cursor
from holdfast.runtime.data.samples import ArrayData
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import Replica
from holdfast.runtime.training import stages
from holdfast.runtime.training.stages import Result, StageEnd, Trainer
from holdfast.runtime.worker.context import TrainingRefused, training_refused


def trainer_of(model: Any, **wishes: Any) -> Trainer:
    terms: dict[str, Any] = {"global_batch": 9, "epochs": 2, **wishes}
    return Trainer(model, data(), **terms)


def test_callbacks_are_refused_with_the_calls_that_take_them() -> None:
    given: Any = [object()]

    with pytest.raises(ProgramError) as caught:
        Trainer(None, ArrayData(np.ones(4)), global_batch=2, epochs=1, callbacks=given)

    assert "Trainer takes no callbacks" in str(caught.value)
    assert "model.fit(..., callbacks=...)" in str(caught.value)
    assert "holdfast.fit(model, ..., callbacks=...)" in str(caught.value)


def test_data_that_cannot_be_read_by_number_are_refused_by_their_argument() -> None:
    arrays: Any = np.ones(4)

    with pytest.raises(ProgramError, match=r"^data is a ndarray, .*: give ArrayData\(x, y\)$"):
        Trainer(None, arrays, global_batch=2, epochs=1)
    with pytest.raises(ProgramError, match=r"^validation is a ndarray"):
        trainer_of(None, validation=arrays)


@pytest.fixture
def build(monkeypatch: pytest.MonkeyPatch) -> Callable[[Trainer], Replica]:
    """Return what a script without Keras builds the replica of a trainer with."""
    for name in ("keras", "tensorflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    context: Any = SimpleNamespace(config=worker_config())
    return lambda trainer: trainer._build(SimpleNamespace(), context)  # type: ignore[arg-type]


@pytest.mark.parametrize("model", [TinyReplica, partial(TinyReplica)], ids=["class", "function"])
def test_replica_is_made_when_the_training_begins(
    build: Callable[[Trainer], Replica], model: Callable[[], TinyReplica]
) -> None:
    trainer = trainer_of(model)

    assert isinstance(build(trainer), TinyReplica)
    assert build(trainer) is trainer.replica


def test_model_that_is_none_is_refused_with_what_is_one(
    build: Callable[[Trainer], Replica],
) -> None:
    with pytest.raises(ProgramError, match="the trainer's model is a int, which is neither a comp"):
        build(trainer_of(lambda: 3))


def test_script_that_is_asked_for_its_model_does_not_train() -> None:
    with training_refused(wanted=2) as refusal:
        first = trainer_of("first").run()
        with pytest.raises(TrainingRefused):
            trainer_of("second").run()

    assert first == Result(0, "", is_first=True)
    assert refusal.first_inputs is not None
    assert refusal.model == "second"
    assert refusal.first_inputs().tolist() == data().read(np.arange(1))[0].tolist()


def test_result_is_the_end_of_the_stage_that_was_wished_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Any] = []
    end = StageEnd(TinyReplica(), Cursor.start(1, 6), "ab", False, {"loss": 0.5}, {"loss": 0.25})

    def train(request: Any, build: Any) -> StageEnd:
        asked.append((request.epochs, request.keep_best, request.verify_every, request.keep_every))
        return end

    monkeypatch.setattr(stages, "stages_of_script", lambda: SimpleNamespace(train=train))
    best = ("loss", "min")

    result = trainer_of("model", epochs=3, keep_best=best, verify_every=5, keep_every=7).run()

    assert asked == [(3, best, 5, 7)]
    assert result == Result(6, "ab", False, {"loss": 0.5}, {"loss": 0.25})
