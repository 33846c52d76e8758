"""Callbacks see what they see under Keras's own ``fit``, also in a launch that goes on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from driven_run import STEPS, Driven, begin, drive, one_layer, plan_of

from holdfast.recovery.ledger import Cursor
from holdfast.recovery.work_plan import Work
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.callback_run import kind_of, made_again, note_of
from holdfast.runtime.training.callback_host import Commit

pytestmark = pytest.mark.tensorflow

X = np.ones((STEPS, 1), np.float32)
HOOKS = ("on_train_begin", "on_train_end", "on_test_begin", "on_test_end")
NUMBERED = (
    *("on_epoch_begin", "on_epoch_end", "on_train_batch_begin", "on_train_batch_end"),
    *("on_test_batch_begin", "on_test_batch_end"),
)
SOME = [1, 3]
VALIDATED = {"has_validation": True}
CASES: list[tuple[dict[str, Any], dict[str, Any], Any]] = [
    ({}, {}, None),
    ({}, {}, ("on_train_begin", None)),
    ({}, {}, ("on_train_batch_end", 0)),
    (VALIDATED, {}, None),
    (VALIDATED, {}, ("on_epoch_begin", 1)),
    (VALIDATED, {}, ("on_train_batch_begin", 0)),
    (VALIDATED, {}, ("on_train_batch_end", 0)),
    (VALIDATED, {}, ("on_train_batch_end", STEPS - 1)),
    (VALIDATED, {}, ("on_epoch_end", 0)),
    (VALIDATED, {}, ("on_test_begin", None)),
    (VALIDATED, {}, ("on_test_end", None)),
    ({"execution": 2}, {}, None),
    ({"execution": 2, **VALIDATED}, {}, ("on_train_batch_begin", 0)),
    ({"execution": 2, **VALIDATED}, {}, ("on_train_batch_end", 1)),
    ({"execution": 2, **VALIDATED}, {}, ("on_train_batch_begin", 2)),
    ({"execution": 2}, {}, ("on_train_batch_end", 3)),
    ({"execution": 3, **VALIDATED}, {}, None),
    ({"execution": 100}, {}, ("on_train_batch_begin", 0)),
    ({"epochs": 3, "validated": 2, **VALIDATED}, {"epochs": 3, "validation_freq": 2}, None),
    (
        {"epochs": 3, "validated": (1, 3), **VALIDATED},
        {"epochs": 3, "validation_freq": [1, 3]},
        None,
    ),
    ({"first_epoch": 1, **VALIDATED}, {"epochs": 3, "initial_epoch": 1}, None),
]
"""Terms of a stage, the same as arguments of ``fit``, and the hook in which a callback stops."""


def recorder(stop: Any = None) -> Any:
    """Return a callback that remembers its hooks, and stops the training in one of them."""

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.seen: list[Any] = []

        def see(self, hook: str, number: int | None, logs: Any) -> None:
            self.seen.append([hook, number, sorted(logs or {})])
            if (hook, number) == stop:
                self.model.stop_training = True

    for name in HOOKS:
        setattr(Recorder, name, lambda self, logs=None, name=name: self.see(name, None, logs))
    for name in NUMBERED:
        setattr(Recorder, name, lambda self, at, logs=None, name=name: self.see(name, at, logs))
    return Recorder()


def dicer(number: int, workers: list[Driven]) -> Any:
    """Return a callback that does another thing on each worker."""

    def throw(batch: int, logs: Any) -> None:
        callback.luck = number
        workers[number].replica.tensors = {"w": np.full(2, number, np.float32)}

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=throw, luck=None)
    return callback


def driven(callbacks: Any, tmp_path: Path, execution: int = 1, **terms: Any) -> Driven:
    """Return a worker that has trained to the end."""
    worker = Driven(callbacks, tmp_path, plan_of(**terms), execution=execution)
    begin(worker)
    drive(worker)
    return worker


def in_keras(callback: Any, execution: int = 1, **arguments: Any) -> list[Any]:
    """Return what the callback sees under plain ``fit``."""
    one_layer(execution).fit(X, X, 1, verbose=0, callbacks=[callback], **arguments)
    return list(callback.seen)


@pytest.mark.parametrize(("terms", "arguments", "stop"), CASES, ids=str)
def test_hooks_are_those_of_keras_wherever_a_callback_stops(
    tmp_path: Path, terms: dict[str, Any], arguments: dict[str, Any], stop: Any
) -> None:
    """Those about batches come once for each execution."""
    given = {"validation_data": (X, X)} if "has_validation" in terms else {}
    ours, kerass = recorder(stop), recorder(stop)

    worker = driven([ours], tmp_path, **terms)

    plain = in_keras(kerass, terms.get("execution", 1), **{"epochs": 2, **given, **arguments})
    assert ours.seen == plain
    assert worker.run.is_over is (ours.model.stop_training is True)
    assert worker.run.history.epoch == kerass.model.history.epoch


@pytest.mark.parametrize(
    ("validates", "stop", "execution"),
    [
        (False, None, 1),
        (True, None, 1),
        (True, ("on_train_batch_end", 1), 1),
        (True, ("on_epoch_end", 0), 1),
        (True, ("on_train_batch_end", 1), 2),
        (False, ("on_train_batch_begin", 2), 2),
    ],
    ids=str,
)
def test_launch_that_goes_on_after_any_commit_sees_what_an_undisturbed_one_sees(
    tmp_path: Path, stop: Any, execution: int, *, validates: bool
) -> None:
    whole = recorder(stop)
    history = driven([whole], tmp_path, execution, has_validation=validates).run.history
    plan = plan_of(has_validation=validates)
    for commits in range(1, len(whole.seen)):
        lost, resumed = (
            Driven([recorder(stop)], tmp_path, plan, execution=execution) for _ in range(2)
        )
        begin(lost)
        drive(lost, commits=commits)
        if plan.is_save_point(lost.cursor):
            begin(resumed, kept=lost.keep())
            drive(resumed)
            (seen,) = (c.seen for c in resumed.rounds.kept)
            assert (seen, resumed.run.history.history) == (whole.seen, history.history)
        if lost.is_complete:
            return
    raise AssertionError("the stage did not end")


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (lambda _, logs: logs["loss"], "the logs of a single batch of the validation"),
        (lambda _, logs: dict(logs), "the logs of a single batch of the validation"),
        (lambda _, logs: {**logs}, "the logs of a single batch of the validation"),
        (lambda _, logs: logs.copy(), "the logs of a single batch of the validation"),
        (lambda _, logs: logs | {}, "the logs of a single batch of the validation"),
        (lambda _, logs: str(logs), "the logs of a single batch of the validation"),
        (
            lambda _, logs: logs.setdefault("loss", 0.0),
            "the logs of a single batch of the validation",
        ),
        (lambda model, _: setattr(model, "stop_evaluating", True), "model.stop_evaluating"),
    ],
)
def test_what_nobody_knows_of_a_batch_of_validation_is_refused(
    tmp_path: Path, look: Any, said: str
) -> None:
    hooks = {"on_test_batch_end": lambda self, _, logs=None: look(self.model, logs)}
    own = type("Own", (keras.callbacks.Callback,), hooks)

    with pytest.raises(ProgramError, match=said):
        driven([own()], tmp_path, has_validation=True)


def test_stage_that_is_complete_runs_no_hook_and_gives_all_that_was_known(tmp_path: Path) -> None:
    before = driven([recorder()], tmp_path)
    for variable in before.model.metrics_variables:
        variable.assign(variable + 3.0)
    callback = recorder()
    again = Driven([callback], tmp_path)

    begin(again, kept=before.keep())

    assert again.is_complete
    assert callback.seen[-1] == ["on_train_end", None, ["loss"]]
    assert callback.model is again.model
    assert again.model.history is again.run.history
    assert again.run.history.history == before.run.history.history
    assert [float(found) for found in again.model.metrics_variables] == [3.0] * len(
        before.model.metrics_variables
    )


def test_script_that_asks_for_more_epochs_goes_on_with_the_next_one(tmp_path: Path) -> None:
    before, callback = driven([recorder()], tmp_path, epochs=1), recorder()
    seen = list(before.rounds.kept[0].seen)
    more = Driven([callback], tmp_path, plan_of(2))

    begin(more, kept=before.keep())
    has_ended = more.keep().notes["position"]["has_ended"]
    drive(more)

    assert not has_ended
    assert callback.seen[: len(seen) + 1] == [*seen, ["on_epoch_begin", 1, []]]
    assert callback.seen[-1][0] == "on_train_end"
    assert more.run.history.epoch == [0, 1]


def test_stage_that_a_callback_has_ended_stays_ended_when_more_epochs_are_asked_for(
    tmp_path: Path,
) -> None:
    before, callback = driven([recorder(("on_epoch_end", 0))], tmp_path), recorder()
    more = Driven([callback], tmp_path, plan_of(9))

    begin(more, kept=before.keep())
    drive(more)

    assert more.is_complete
    assert callback.seen == before.rounds.kept[0].seen
    assert more.run.history.epoch == [0]


def test_worker_that_takes_a_newer_state_over_begins_no_second_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer, behind = (Driven([recorder()], tmp_path) for _ in range(2))
    for worker in (newer, behind):
        begin(worker)
    drive(newer, commits=2)
    callback = behind.rounds.kept[0]
    monkeypatch.setattr(type(callback), "on_train_begin", lambda *_: pytest.fail("begun again"))

    begin(behind, kept=newer.keep())
    drive(behind)
    drive(newer)

    assert callback.seen == newer.rounds.kept[0].seen


def test_what_callbacks_remember_and_change_is_that_of_the_first_worker(tmp_path: Path) -> None:
    workers: list[Driven] = []
    workers += [Driven([dicer(number, workers)], tmp_path) for number in range(2)]

    begin(*workers)
    drive(*workers, commits=1)

    assert [worker.rounds.kept[0].luck for worker in workers] == [0, 0]
    assert [worker.replica.tensors["w"].tolist() for worker in workers] == [[0, 0], [0, 0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf], ids=str)
def test_loss_that_is_not_finite_ends_the_training_for_those_who_wait_for_it(
    tmp_path: Path, bad: float
) -> None:
    plan = plan_of()
    waits, goes_on = (
        Driven(found, tmp_path, plan, losses=lambda step: bad if step == 1 else 1.0)
        for found in ([keras.callbacks.TerminateOnNaN()], [keras.callbacks.History()])
    )

    for worker in (waits, goes_on):
        begin(worker)
        drive(worker)

    assert (waits.cursor.step, waits.run.history.epoch) == (2, [0])
    assert (goes_on.cursor.step, goes_on.run.history.epoch) == (2 * STEPS, [0, 1])


def test_metrics_are_held_in_the_middle_of_an_epoch_for_callbacks_that_may_read_them(
    tmp_path: Path,
) -> None:
    reads = driven([recorder()], tmp_path, epochs=1)
    rests = driven([keras.callbacks.EarlyStopping("loss")], tmp_path, epochs=1)

    assert reads.replica.held == [(0.0, 1), (1.0, 2)]
    assert rests.replica.held == []


def test_line_of_each_epoch_goes_through_the_scripts_own_stream(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    worker = Driven([], tmp_path, plan_of(**VALIDATED))
    worker.run.tells_script = True

    begin(worker)
    drive(worker)

    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" - ")[0] for line in said] == ["Epoch 1/2", "Epoch 2/2"]
    assert all("loss: " in line and line.endswith("val_loss: 0.5000") for line in said)


def test_attribute_that_no_checkpoint_keeps_is_told_once(tmp_path: Path) -> None:
    callback = recorder()
    callback.tracker = type("Tracker", (), {})()

    worker = driven([callback], tmp_path)

    assert worker.said == [
        "the callback's Recorder.tracker (a Tracker) is not kept in checkpoints: a relaunch begins "
        "with a new one; give the callback get_state() and set_state() to keep it"
    ]


@pytest.mark.parametrize(
    ("kinds", "amid", "at_end"),
    [
        ((), False, False),
        (("ends of epochs",), False, True),
        (("batches",), True, True),
        (("of Keras",), False, True),
    ],
)
def test_state_is_held_before_code_of_the_script_alone(
    tmp_path: Path, kinds: tuple[str, ...], *, amid: bool, at_end: bool
) -> None:
    class AtEnds(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None: ...

    class OnBatches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None: ...

    made = {"ends of epochs": AtEnds, "batches": OnBatches, "of Keras": keras.callbacks.CSVLogger}
    given = [made[kind](*([str(tmp_path / "l")] * (kind == "of Keras"))) for kind in kinds]
    run = driven(given, tmp_path).run

    def acts(following: Work | None, *, has_ended: bool) -> bool:
        cursor = Cursor.start(1)
        return run.acts_after(Commit(Work.TRAIN, cursor, 1, has_ended, {}, None, following))

    assert acts(Work.TRAIN, has_ended=False) is amid
    assert acts(Work.EVALUATE, has_ended=False) is at_end
    assert acts(Work.TRAIN, has_ended=True) is at_end
    assert acts(None, has_ended=True) is at_end


class Pruned(Exception):
    """An error with an argument that its class needs, and a field."""

    def __init__(self, loss: float, *, epoch: int) -> None:
        super().__init__(loss)
        self.epoch = epoch

    def __str__(self) -> str:
        return f"loss {self.args[0]} at epoch {self.epoch}"


def kept(error: Exception) -> Exception:
    return made_again(json.loads(json.dumps(note_of(error), allow_nan=False)))


@pytest.mark.parametrize(
    "error",
    [
        Pruned(7.5, epoch=2),
        ValueError(),
        KeyError("rate"),
        OSError(28, "No space left on device", "a.txt"),
        ValueError(float("nan"), (1, 2), np.float32(0.5)),
    ],
    ids=["of the script", "empty", "key", "of the system", "numbers"],
)
def test_error_is_made_again_as_it_was(error: Exception) -> None:
    again = kept(error)

    assert (type(again), str(again)) == (type(error), str(error))
    assert (repr(again.args), repr(vars(again))) == (repr(error.args), repr(vars(error)))


def test_class_that_only_a_function_knows_is_found_and_of_two_the_newer_one() -> None:
    def define() -> type[Exception]:
        class Local(Exception):
            pass

        return Local

    older, newer = define(), define()

    assert type(kept(older("x"))) is newer


def test_error_of_a_class_that_is_not_there_is_one_of_the_next_class_that_is() -> None:
    note = note_of(Pruned(1.0, epoch=1))
    note["classes"][0] = "elsewhere.Pruned"

    assert type(made_again(note)) is Exception


def test_argument_that_is_not_plain_is_a_text() -> None:
    assert kept(ValueError(ValueError("inner"))).args == ("inner",)


def test_kinds_are_names_of_classes_and_short() -> None:
    long = type("E" * 300, (Exception,), {})

    assert kind_of(ValueError("x")) == kind_of(ValueError("y")) == b"builtins.ValueError"
    assert len(kind_of(long())) == 255
