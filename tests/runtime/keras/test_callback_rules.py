"""What is special about callbacks of each class, and in which order they are arranged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime.keras.callback_rules import (
    acts,
    arranged,
    ends_at_nan,
    flat,
    is_alike,
    is_left_out,
    needs_logs,
    sees_metrics,
    settings_in_words,
    without_graphs,
)
from holdfast.runtime.script.overlay import Overlay
from holdfast.runtime.script.saves import EventFiles

pytestmark = pytest.mark.tensorflow

keras = pytest.importorskip("keras").callbacks


def own(base: type = keras.Callback, *arguments: Any, **attributes: Any) -> Any:
    """Return a callback of a class that the script has written."""
    return type("Own", (base,), attributes)(*arguments)


def hook(callback: Any, *arguments: Any, **by: Any) -> None:
    """Do what a script wants at that moment."""


def files(*, is_first: bool) -> Overlay:
    return Overlay(is_first, lambda: Path("/none"), lambda text: None)


@pytest.mark.parametrize(
    ("callback", "alike"),
    [
        (keras.EarlyStopping(), True),
        (keras.CSVLogger("log.csv"), True),
        (keras.RemoteMonitor(), True),
        (keras.LambdaCallback(), False),
        (keras.LearningRateScheduler(lambda epoch: 0.1), False),
        (own(), False),
        (own(keras.CSVLogger, "log.csv"), False),
        (own(keras.EarlyStopping), False),
        (own(keras.RemoteMonitor), False),
    ],
)
def test_effects_of_code_that_the_script_has_written_are_compared(
    callback: Any, *, alike: bool
) -> None:
    assert is_alike(callback) is alike


def test_class_of_the_script_that_has_a_name_of_keras_is_no_class_of_keras() -> None:
    assert not is_left_out(type("BackupAndRestore", (keras.Callback,), {})())
    assert is_left_out(keras.BackupAndRestore("backup"))


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_only_the_first_worker_traces_for_tensorboard(*, first: bool, wanted: bool) -> None:
    board, here = keras.TensorBoard(), files(is_first=first)
    board._should_trace, summary = wanted, board.summary

    run, _ = arranged([board], here, EventFiles(here, ".t"))

    assert run == [board]
    assert board._should_trace is (first and wanted)
    assert board.summary is not summary


def test_callback_that_speaks_to_the_world_outside_is_put_off_by_the_others() -> None:
    """A class of the script follows the rule of the class of Keras beneath."""
    said: list[Any] = []

    def on_epoch_end(callback: Any, epoch: int, logs: Any = None) -> None:
        said.append((epoch, logs))

    monitor = own(keras.RemoteMonitor, "http://here", on_epoch_end=on_epoch_end)
    first, other = (files(is_first=is_first) for is_first in (True, False))
    runs = [arranged([monitor], here, EventFiles(here, ".t"))[0][0] for here in (first, other)]

    runs[1].on_epoch_end(1, logs={"loss": 2.0})
    assert said == []
    other.take_over()
    assert said == [(1, {"loss": 2.0})]
    runs[0].on_epoch_end(2)
    assert said == [(1, {"loss": 2.0}), (2, None)]
    assert runs[1].root == "http://here"


def test_graphs_are_not_written_again_and_the_settings_come_back_after_an_error() -> None:
    boards = [keras.TensorBoard(write_graph=writes) for writes in (True, False)]
    seen: list[bool] = []

    def fail() -> None:
        with without_graphs([*boards, own()]):
            seen.extend(board.write_graph for board in boards)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert seen == [False, False]
    assert [board.write_graph for board in boards] == [True, False]


@pytest.mark.parametrize(
    ("callback", "asked", "does"),
    [
        (own(), (), False),
        (own(on_epoch_end=hook), (), True),
        (own(on_epoch_end=hook), ("on_train_batch_end",), False),
        (own(on_epoch_end=hook), ("on_epoch_end",), True),
        (own(on_batch_end=hook), ("on_train_batch_end",), True),
        (own(on_batch_end=hook), ("on_train_batch_begin",), False),
        (own(on_train_batch_begin=hook), ("on_train_batch_begin",), True),
    ],
    ids=["none", "any", "other", "same", "old name", "other old name", "new name"],
)
def test_callback_acts_in_the_hooks_that_it_overrides(
    callback: Any, asked: tuple[str, ...], *, does: bool
) -> None:
    assert acts(callback, *asked) is does


@pytest.mark.parametrize(
    ("callback", "ends", "logs", "sees"),
    [
        (keras.ModelCheckpoint("a.keras"), False, False, False),
        (keras.ModelCheckpoint("a.keras", save_freq=10), True, True, True),
        (keras.TensorBoard(), True, False, False),
        (keras.TensorBoard(update_freq=1), True, True, True),
        (keras.ProgbarLogger(), True, True, True),
        (keras.TerminateOnNaN(), False, False, False),
        (own(keras.TerminateOnNaN), True, True, True),
        (own(on_train_batch_begin=hook), False, False, True),
    ],
)
def test_what_keras_does_in_batches_depends_on_its_settings(
    callback: Any, *, ends: bool, logs: bool, sees: bool
) -> None:
    assert acts(callback, "on_train_batch_end") is ends
    assert needs_logs(callback) is logs
    assert sees_metrics(callback) is sees
    assert ends_at_nan(callback) is isinstance(callback, keras.TerminateOnNaN)


def test_callbacks_are_a_list_however_they_are_given() -> None:
    one = own()

    assert flat(None) == []
    assert flat(one) == flat(keras.CallbackList([one], add_history=False)) == [one]


def test_settings_that_act_on_training_are_told_also_of_a_subclass() -> None:
    class Own(keras.EarlyStopping):  # type: ignore[misc,name-defined]
        def __init__(self, path: str, started: float) -> None:
            super().__init__("loss", patience=4)
            self.path, self.started = path, started

    told = settings_in_words(
        [
            Own("/tmp/123", 1.5),
            keras.EarlyStopping(patience=9, verbose=1),
            keras.CSVLogger("log-123.csv"),
            keras.ReduceLROnPlateau(factor=0.25),
        ]
    )

    assert told["monitor of EarlyStopping"] == "'loss'"
    assert told["patience of EarlyStopping"] == "4"
    assert told["patience of EarlyStopping number 2"] == "9"
    assert told["factor of ReduceLROnPlateau"] == "0.25"
    assert {name.partition(" of ")[2].partition(" ")[0] for name in told} == {
        "EarlyStopping",
        "ReduceLROnPlateau",
    }
    assert not any("verbose" in name or "path" in name or "started" in name for name in told)
