"""Rounds of callbacks: what all do alike, what came of it, and settings that come too late."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from driven_run import Driven, begin, drive, one_layer

from holdfast.recovery.work_plan import Work
from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.callback_rounds import TracedSettings

pytestmark = pytest.mark.tensorflow


def of_script(**hooks: Any) -> Any:
    """Return a callback of the script that has these hooks, each with all arguments it gets."""

    class Own(keras.callbacks.Callback):  # type: ignore[misc,name-defined]
        count = 0

    for name, hook in hooks.items():
        setattr(Own, name, hook)
    return Own()


def counts(callback: Any, *_: Any, **__: Any) -> None:
    callback.count += 1


def worker(tmp_path: Path, *callbacks: Any, is_first: bool = True) -> Driven:
    return Driven(list(callbacks), tmp_path, is_first=is_first)


def test_effects_that_follow_from_the_logs_alone_are_not_compared(tmp_path: Path) -> None:
    here = worker(tmp_path, keras.callbacks.EarlyStopping("loss"), keras.callbacks.TerminateOnNaN())
    here.rounds.begin()

    here.rounds.call("on_epoch_end", 0, {"loss": 1.0})
    effects = here.rounds.effects()

    assert (effects.wants_stop, effects.notes, effects.state) == (False, b"", b"")


def test_one_callback_of_the_script_lets_what_all_remember_be_compared(tmp_path: Path) -> None:
    workers = [worker(tmp_path, of_script(on_epoch_end=counts)) for _ in range(3)]
    for here in workers:
        here.rounds.begin()
        here.rounds.call("on_epoch_end", 0, {})
    workers[2].rounds.kept[0].count += 1

    one, same, other = (here.rounds.effects() for here in workers)

    assert one == same
    assert one.notes != other.notes
    assert one.state == other.state


def test_tensor_that_a_hook_has_replaced_is_compared_by_its_bytes(tmp_path: Path) -> None:
    workers = [worker(tmp_path, of_script(on_epoch_end=counts)) for _ in range(4)]
    for here, value in zip(workers, (None, 0, 5, 5), strict=True):
        here.rounds.begin()
        here.rounds.call("on_epoch_end", 0, {})
        if value is not None:
            here.replica.tensors = {"w": np.full(2, value, np.float32)}

    untouched, zeros, fives, again = (here.rounds.effects().state for here in workers)

    assert fives == again
    assert len({untouched, zeros, fives}) == 3


@pytest.mark.parametrize("begins", [False, True], ids=["before", "by a hook that nobody has"])
def test_change_before_the_round_is_no_effect_of_it(tmp_path: Path, *, begins: bool) -> None:
    """Else an epoch's updates would count as effects, and all weights be digested."""
    here, other = (worker(tmp_path, of_script(on_epoch_end=counts)) for _ in range(2))
    for one in (here, other):
        one.rounds.begin()
        one.rounds.agreed(b"{}")
        if begins:
            one.rounds.call("on_epoch_begin", 0, {})
    here.replica.tensors = {"w": np.ones(2, np.float32)}

    for one in (here, other):
        one.rounds.call("on_epoch_end", 0, {})

    assert here.rounds.effects() == other.rounds.effects()


def test_workers_have_to_agree_only_after_hooks_that_do_something(tmp_path: Path) -> None:
    here = worker(tmp_path, of_script(on_epoch_end=counts))
    here.rounds.begin()
    dues = [here.rounds.is_due]  # any callback may raise when it gets its model
    here.rounds.agreed(b"{}")
    for hook in ("on_epoch_begin", "on_epoch_end", "on_test_begin"):
        here.rounds.call(hook, *((0, {}) if "epoch" in hook else ()))
        dues.append(here.rounds.is_due)

    here.rounds.agreed(b"{}")

    assert dues == [True, False, True, True]
    assert not here.rounds.is_due


def test_hook_of_a_batch_that_another_hook_sets_is_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def sets(callback: Any, *_: Any) -> None:
        callback.on_train_batch_end = lambda batch, logs: seen.append(batch)

    here = worker(tmp_path, of_script(on_epoch_begin=sets))
    here.rounds.begin()
    for batch in range(3):
        here.rounds.call_each("on_train_batch_end", batch, {})
        if batch == 1:
            here.rounds.call("on_epoch_begin", 0, {})

    assert seen == [2]
    assert here.rounds.acts_on_batches()


def test_hook_of_a_batch_gets_logs_of_its_own(tmp_path: Path) -> None:
    def spoils(callback: Any, batch: int, logs: Any) -> None:
        logs["loss"] = -1.0

    seen: list[Any] = []
    looks = of_script(on_train_batch_end=lambda _, batch, logs: seen.append((batch, logs)))
    here = worker(tmp_path, of_script(on_train_batch_end=spoils), looks)
    here.rounds.begin()

    here.rounds.call_each("on_train_batch_end", 3, {"loss": 2.0})

    assert seen == [(3, {"loss": 2.0})]


def test_history_of_the_script_is_the_one_that_is_written(tmp_path: Path) -> None:
    own = keras.callbacks.History()
    given, made = worker(tmp_path, own), worker(tmp_path)

    for here in (given, made):
        here.rounds.begin()
        here.rounds.call("on_epoch_end", 0, {"loss": 2.0})

    assert given.rounds.history is given.model.history is own
    assert list(given.rounds.notes()["callbacks"]) == ["History-1"]
    assert own.history == made.rounds.history.history == {"loss": [2.0]}


def test_lengths_of_growing_files_go_from_the_first_worker_to_the_others(tmp_path: Path) -> None:
    def opens(callback: Any, logs: Any = None) -> None:
        with (tmp_path / "log").open("a") as file:
            file.write("line\n")

    private = tmp_path / "private"
    private.mkdir()
    first = worker(tmp_path, of_script(on_train_begin=opens))
    other = Driven([of_script(on_train_begin=opens)], private, is_first=False)
    for here in (first, other):
        here.rounds.begin()

    message = first.rounds.message()
    other.rounds.agreed(message)

    assert other.rounds.message() == b""
    assert list(json.loads(message)) == [str(tmp_path / "log")]
    assert other.files.lengths == first.files.measure()
    assert other.rounds.notes()["files"] == json.loads(message)
    assert (tmp_path / "log").read_text() == "line\n"


def test_worker_that_leads_from_now_on_makes_its_round_real(tmp_path: Path) -> None:
    def notes(callback: Any, logs: Any = None) -> None:
        here.files.defers(lambda: seen.append(here.saves.hooks))
        seen.append(here.saves.hooks)
        (tmp_path / "note").write_text("noted")

    private = tmp_path / "private"
    private.mkdir()
    here = Driven([of_script(on_train_begin=notes)], private, is_first=False)
    seen: list[Any] = []
    here.rounds.begin()
    before = (tmp_path / "note").exists()

    here.rounds.lead()

    assert (before, (tmp_path / "note").read_text()) == (False, "noted")
    assert seen == [here.files, None]  # a save that was put off is Keras's own now


def test_error_of_a_hook_leaves_neither_guard_nor_private_saves_behind(tmp_path: Path) -> None:
    def fails(callback: Any, logs: Any = None) -> None:
        raise ZeroDivisionError

    here = worker(tmp_path, of_script(on_train_begin=fails), is_first=False)
    before = open

    with pytest.raises(ZeroDivisionError):
        here.rounds.begin()

    assert here.saves.hooks is None
    assert open is before


def test_what_on_train_begin_does_to_the_model_is_not_done_again_by_a_launch_that_goes_on(
    tmp_path: Path,
) -> None:
    def doubles(callback: Any, logs: Any = None) -> None:
        workers[-1].replica.tensors["w"] = workers[-1].replica.tensors["w"] * 2 + 1

    workers = [worker(tmp_path, of_script(on_train_begin=doubles))]
    begin(workers[0])
    kept = workers[0].keep()
    workers.append(worker(tmp_path, of_script(on_train_begin=doubles)))

    begin(workers[1], kept=kept)

    assert workers[1].replica.tensors["w"].tolist() == [1, 1]


def test_log_of_keras_goes_on_in_its_file_with_one_header(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    workers = [worker(tmp_path, keras.callbacks.CSVLogger(path)) for _ in range(2)]
    begin(workers[0])
    workers[0].rounds.call("on_epoch_end", 0, {"loss": 2.0})
    workers[0].rounds.agreed(workers[0].rounds.message())
    kept = workers[0].keep()
    workers[0].rounds.call("on_epoch_end", 1, {"loss": 7.0})  # of a step that was lost
    workers[0].rounds.call("on_train_end", {})

    begin(workers[1], kept=kept)
    workers[1].rounds.call("on_epoch_end", 1, {"loss": 1.0})
    workers[1].rounds.call("on_train_end", {})

    assert path.read_text().split() == ["epoch,loss,val_loss", "0,2.0,NA", "1,1.0,NA"]


def test_backup_of_keras_does_nothing_and_remembers_nothing(tmp_path: Path) -> None:
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    here = worker(tmp_path, backup)

    here.rounds.begin()
    here.rounds.call("on_epoch_end", 0, {"loss": 1.0})

    assert not (tmp_path / "backup").exists()
    assert list(here.rounds.notes()["callbacks"]) == ["History-1"]
    assert here.rounds.words == [
        "BackupAndRestore does nothing here: holdfast makes the checkpoints, and resumes"
    ]


BEFORE_THE_FIRST_STEP = ("on_train_begin", "on_epoch_begin", "on_train_batch_begin")


def setter(hook: str, name: str, value: float) -> Any:
    """Return a callback that sets an attribute of the optimizer."""
    return of_script(**{hook: lambda own, *_, **__: setattr(own.model.optimizer, name, value)})


@pytest.mark.parametrize("hook", BEFORE_THE_FIRST_STEP)
def test_late_setting_is_refused(tmp_path: Path, hook: str) -> None:
    worker = Driven([setter(hook, "clipnorm", 0.5)], tmp_path)
    begin(worker)

    with pytest.raises(ProgramError, match=r"clipnorm of .* from None to 0\.5 .* before fit"):
        worker.commit()


@pytest.mark.parametrize(
    ("hook", "name"),
    [("on_train_begin", "learning_rate"), ("on_epoch_end", "clipnorm")],
    ids=["a variable has effect", "Keras ignores it too"],
)
def test_other_changes_are_as_in_keras(tmp_path: Path, hook: str, name: str) -> None:
    worker = Driven([setter(hook, name, 0.5)], tmp_path)
    begin(worker)

    drive(worker)

    assert worker.is_complete


def compiled() -> Any:
    model = one_layer()
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def several(model: Any) -> Any:
    """Return an optimizer of one that is the second optimizer of a model."""
    found = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(model.second))
    found.build(model.trainable_variables)
    return found


def loss_scaled(model: Any) -> Any:
    """Return an optimizer that scales the loss of another one."""
    return keras.optimizers.LossScaleOptimizer(model.second)


CHANGES: dict[str, Callable[[Any], None]] = {
    "a number of NumPy": lambda model: setattr(model.optimizer, "clipnorm", np.float32(0.5)),
    "a schedule": lambda model: setattr(
        model.optimizer,
        "learning_rate",
        keras.optimizers.schedules.ExponentialDecay(0.5, 1, 0.5),
    ),
    "a frozen layer": lambda model: setattr(model.layers[0], "trainable", False),
    "a second optimizer": lambda model: setattr(model.second, "beta_1", 0.5),
    "an inner layer": lambda model: setattr(model.layers[-1].layers[0], "rate", 0.5),
}


@pytest.mark.parametrize(
    ("change", "wraps"),
    [
        *((name, None) for name in CHANGES),
        pytest.param("a second optimizer", loss_scaled, id="scaled"),
        pytest.param("a second optimizer", several, id="several"),
    ],
    ids=str,
)
def test_change_of_any_kind_is_found_also_in_an_optimizer_within_another(
    change: str, wraps: Any
) -> None:
    model = compiled()
    model.add(keras.Sequential([keras.layers.Dropout(0.1)]))
    model.second = keras.optimizers.Adam(0.2)
    if wraps is not None:
        model.optimizer = wraps(model)
    settings = TracedSettings(model)
    settings.check()

    CHANGES[change](model)

    with pytest.raises(ProgramError, match="before the first step"):
        settings.check()


RENEWED: dict[str, Any] = {
    "compile()": lambda model: model.compile("adam", "mse"),
    "make_train_function(force=True)": lambda model: model.make_train_function(force=True),
    "make_test_function(force=True)": lambda model: model.make_test_function(force=True),
}


@pytest.mark.parametrize("call", RENEWED)
def test_no_step_follows_a_hook_that_lets_keras_make_its_graph_anew(
    tmp_path: Path, call: str
) -> None:
    """After the last step it may, for a training of its own."""
    here = worker(tmp_path, of_script(on_epoch_end=lambda own, *_: RENEWED[call](own.model)))
    here.model.make_train_function()
    here.model.make_test_function()
    here.rounds.traced = TracedSettings(here.model)
    begin(here)

    with pytest.raises(ProgramError) as refused:
        drive(here, commits=4)

    assert f"called {call} of 'sequential" in str(refused.value)
    assert here.cursor.step == 3
    assert "fit(initial_epoch=N, epochs=...)" in str(refused.value)


@pytest.mark.parametrize("hook", ["on_train_begin", "on_epoch_begin"])
def test_hook_that_compiles_before_the_first_epoch_is_told_to_do_so_before_fit(
    tmp_path: Path, hook: str
) -> None:
    here = worker(tmp_path, of_script(**{hook: lambda own, *_: own.model.compile("adam", "mse")}))
    begin(here)

    with pytest.raises(ProgramError) as refused:
        drive(here, commits=1)

    assert str(refused.value).endswith("fit(): call compile() before fit() is called")


def test_what_the_script_keeps_on_its_optimizer_is_its_own() -> None:
    """No graph reads it; NaN is not equal to itself."""
    model = compiled()
    model.optimizer.last_loss, model.optimizer.epoch_seen = float("nan"), -1
    settings = TracedSettings(model)

    model.optimizer.epoch_seen = 0
    model.optimizer.momentum = float(model.optimizer.momentum)
    model.optimizer.learning_rate = 0.5

    settings.check()


def test_training_that_goes_on_is_not_looked_at(tmp_path: Path) -> None:
    """Its first launch was; a scheduler sets the value of a later epoch before the first step."""
    first = Driven([setter("on_epoch_end", "clipnorm", 0.5)], tmp_path)
    begin(first)
    first.commit()
    worker = Driven([setter("on_train_begin", "clipnorm", 0.5)], tmp_path)
    kept = first.keep()
    worker.run.load(kept.tensors)

    worker.run.restore(kept.cursor, kept.notes)
    worker.run.before(Work.TRAIN, kept.cursor)

    assert worker.model.optimizer.clipnorm == 0.5


@pytest.mark.parametrize(
    ("hook", "is_told"),
    [*((hook, True) for hook in BEFORE_THE_FIRST_STEP), ("on_epoch_end", False)],
)
def test_number_of_the_model_that_is_set_too_late_is_told(
    tmp_path: Path, hook: str, *, is_told: bool
) -> None:
    """Whether the step reads it, nobody knows; a number set after the first step is as in Keras."""
    anneals = {hook: lambda own, *_, **__: setattr(own.model, "kl_weight", 0.0)}
    worker = Driven([of_script(**anneals)], tmp_path)
    worker.model.kl_weight = 1.0
    worker.rounds.traced = TracedSettings(worker.model)
    begin(worker)

    drive(worker)

    told = [line for line in worker.said if "kl_weight" in line]
    name = worker.model.name
    words = f"a callback has set kl_weight of Sequential {name!r} from 1.0 to 0.0 before the first"
    assert [line.startswith(words) for line in told] == [True] * is_told


def test_what_keras_sets_itself_is_not_told() -> None:
    model = compiled()
    settings = TracedSettings(model)

    model.stop_training = True
    model.fit(np.zeros((4, 1)), np.zeros((4, 1)), verbose=0)

    settings.check()
    assert settings.check() == []
