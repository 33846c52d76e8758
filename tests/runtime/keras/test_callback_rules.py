"""What is special about callbacks of each class, and in which order they are arranged."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.keras.callback_rules import (
    RULES,
    FirstOnly,
    acts,
    arranged,
    is_alike,
    is_left_out,
    needs_logs,
    rule_of,
    sees_metrics,
    settings_in_words,
    without_graphs,
)
from holdfast.runtime.script.overlay import Overlay
from holdfast.runtime.script.saves import EventFiles


def default(hook: Any) -> Any:
    """Mark a hook that does nothing, as Keras does."""
    hook._is_default = True
    return hook


class Callback:
    __module__ = "keras.src.callbacks.callback"

    @default
    def on_batch_begin(self, batch: int, logs: Any = None) -> None:
        pass

    @default
    def on_batch_end(self, batch: int, logs: Any = None) -> None:
        pass

    @default
    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        pass

    @default
    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        pass

    @default
    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        pass


def of_keras(name: str, base: type = Callback, **attributes: Any) -> Any:
    """Return a callback of Keras with this class name."""
    return type(name, (base,), {"__module__": f"keras.src.{name}", **attributes})()


def of_script(base: type = Callback, **attributes: Any) -> Any:
    """Return a callback of a class that the script has written."""
    return type("Own", (base,), {"__module__": "train", **attributes})()


def hook(callback: Any, *arguments: Any, **by: Any) -> None:
    """Do what a script wants at that moment."""


def files(*, is_first: bool) -> Overlay:
    return Overlay(is_first, lambda: Path("/none"), lambda text: None)


@pytest.mark.parametrize(
    ("callback", "alike"),
    [
        (of_keras("EarlyStopping"), True),
        (of_keras("CSVLogger"), True),
        (of_keras("LambdaCallback"), False),
        (of_keras("LearningRateScheduler"), False),
        (of_script(), False),
        (of_script(type(of_keras("CSVLogger"))), False),
        (of_script(type(of_keras("EarlyStopping"))), False),
    ],
    ids=["early", "csv", "lambda", "schedule", "own", "own csv", "own early"],
)
def test_effects_of_code_that_the_script_has_written_are_compared(
    callback: Any, *, alike: bool
) -> None:
    assert is_alike(callback) is alike


def test_class_of_the_script_that_has_a_name_of_keras_is_no_class_of_keras() -> None:
    assert not is_left_out(type("BackupAndRestore", (Callback,), {"__module__": "train"})())
    assert is_left_out(of_keras("BackupAndRestore"))


def test_class_of_the_script_follows_the_rule_of_the_class_of_keras_beneath() -> None:
    own = of_script(type(of_keras("RemoteMonitor")))

    assert rule_of(own).first_only
    assert not rule_of(own).is_alike
    assert RULES["RemoteMonitor"].is_alike


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("wanted", [True, False])
def test_only_the_first_worker_traces_for_tensorboard(*, first: bool, wanted: bool) -> None:
    summary = SimpleNamespace(create_file_writer=None)
    board = of_keras("TensorBoard", _should_trace=wanted, summary=summary, _summary_module=summary)
    here = files(is_first=first)

    run, _ = arranged([board], here, EventFiles(here, ".t"))

    assert run == [board]
    assert board._should_trace is (first and wanted)
    assert board._summary_module is not summary


def test_callback_that_speaks_to_the_world_outside_is_put_off_by_the_others() -> None:
    said: list[Any] = []

    def on_epoch_end(callback: Any, epoch: int, logs: Any = None) -> None:
        said.append((epoch, logs))

    monitor = of_keras("RemoteMonitor", on_epoch_end=on_epoch_end, root="http://here")
    first, other = (files(is_first=is_first) for is_first in (True, False))
    runs = [arranged([monitor], here, EventFiles(here, ".t"))[0][0] for here in (first, other)]

    runs[1].on_epoch_end(1, logs={"loss": 2.0})
    assert said == []
    other.take_over()
    assert said == [(1, {"loss": 2.0})]
    runs[0].on_epoch_end(2)
    assert said == [(1, {"loss": 2.0}), (2, None)]
    assert runs[1].root == "http://here"
    assert isinstance(runs[0], FirstOnly)


def test_graphs_are_not_written_again_and_the_settings_come_back_after_an_error() -> None:
    with_graph, without = of_keras("TensorBoard"), of_keras("TensorBoard")
    with_graph.write_graph, without.write_graph = True, False
    seen: list[bool] = []

    def fail() -> None:
        with without_graphs([with_graph, without, of_script()]):
            seen.extend([with_graph.write_graph, without.write_graph])
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()

    assert seen == [False, False]
    assert (with_graph.write_graph, without.write_graph) == (True, False)


@pytest.mark.parametrize(
    ("callback", "asked", "does"),
    [
        (of_script(), (), False),
        (of_script(on_epoch_end=hook), (), True),
        (of_script(on_epoch_end=hook), ("on_train_batch_end",), False),
        (of_script(on_epoch_end=hook), ("on_epoch_end",), True),
        (of_script(on_batch_end=hook), ("on_train_batch_end",), True),
        (of_script(on_batch_end=hook), ("on_train_batch_begin",), False),
        (of_script(on_train_batch_begin=hook), ("on_train_batch_begin",), True),
    ],
    ids=["none", "any", "other", "same", "old name", "other old name", "new name"],
)
def test_callback_acts_in_the_hooks_that_it_overrides(
    callback: Any, asked: tuple[str, ...], *, does: bool
) -> None:
    assert acts(callback, *asked) is does


@pytest.mark.parametrize(
    ("name", "setting", "counts", "looks"),
    [
        ("ModelCheckpoint", {"save_freq": "epoch"}, False, False),
        ("ModelCheckpoint", {"save_freq": 10}, True, True),
        ("TensorBoard", {"update_freq": "epoch"}, True, False),
        ("TensorBoard", {"update_freq": 1}, True, True),
        ("TerminateOnNaN", {}, False, False),
        ("ProgbarLogger", {}, True, True),
    ],
)
def test_what_keras_does_in_batches_depends_on_its_settings(
    name: str, setting: dict[str, Any], *, counts: bool, looks: bool
) -> None:
    callback = of_keras(name, on_train_batch_begin=hook, on_train_batch_end=hook, **setting)

    assert acts(callback, "on_train_batch_end") is counts
    assert needs_logs(callback) is looks
    assert sees_metrics(callback) is looks


def test_beginning_of_a_batch_sees_metrics_but_needs_no_logs() -> None:
    callback = of_script(on_train_batch_begin=hook)

    assert sees_metrics(callback)
    assert not needs_logs(callback)


@pytest.mark.tensorflow
def test_settings_that_act_on_training_are_told_also_of_a_subclass() -> None:
    import keras

    class Own(keras.callbacks.EarlyStopping):
        def __init__(self, path: str, started: float) -> None:
            super().__init__("loss", patience=4)
            self.path, self.started = path, started

    told = settings_in_words(
        [
            Own("/tmp/123", 1.5),
            keras.callbacks.EarlyStopping(patience=9, verbose=1),
            keras.callbacks.CSVLogger("log-123.csv"),
            keras.callbacks.ReduceLROnPlateau(factor=0.25),
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


@pytest.mark.tensorflow
def test_a_callback_that_waits_for_a_loss_that_is_not_finite_costs_nothing_before() -> None:
    keras = pytest.importorskip("keras")
    from holdfast.runtime.keras.callback_rules import acts, ends_at_nan, flat, needs_logs

    class Own(keras.callbacks.TerminateOnNaN):  # type: ignore[misc,name-defined]
        pass

    of_keras, own, other = keras.callbacks.TerminateOnNaN(), Own(), keras.callbacks.EarlyStopping()

    assert [ends_at_nan(callback) for callback in (of_keras, own, other)] == [True, True, False]
    assert not acts(of_keras, "on_train_batch_end")
    assert not needs_logs(of_keras)
    assert acts(own, "on_train_batch_end")
    assert needs_logs(own)
    assert flat(None) == []
    assert flat(other) == [other]
    assert flat(keras.callbacks.CallbackList([own], add_history=False)) == [own]
