"""A round of hooks: what of it the workers compare, what they tell, and what is put back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from driven_run import Driven, begin

pytestmark = pytest.mark.tensorflow


def of_script(**hooks: Any) -> Any:
    """Return a callback of the script that has these hooks, each with all arguments it gets."""
    keras = pytest.importorskip("keras")

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
    keras = pytest.importorskip("keras")
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
    workers[2].rounds._kept[0].count += 1

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


def test_change_before_the_round_is_no_effect_of_it(tmp_path: Path) -> None:
    here, other = (worker(tmp_path, of_script(on_epoch_end=counts)) for _ in range(2))
    for one in (here, other):
        one.rounds.begin()
        one.rounds.agreed(b"{}")
    here.replica.tensors = {"w": np.ones(2, np.float32)}

    for one in (here, other):
        one.rounds.call("on_epoch_end", 0, {})

    assert here.rounds.effects() == other.rounds.effects()


def test_hook_that_no_callback_has_begins_no_round(tmp_path: Path) -> None:
    """Else an epoch's updates would count as effects, and all weights be digested."""
    here, other = (worker(tmp_path, of_script(on_epoch_end=counts)) for _ in range(2))
    for one in (here, other):
        one.rounds.begin()
        one.rounds.agreed(b"{}")
        one.rounds.call("on_epoch_begin", 0, {})
    here.replica.tensors = {"w": np.ones(2, np.float32)}

    for one in (here, other):
        one.rounds.call("on_epoch_end", 0, {})

    assert here.rounds.effects() == other.rounds.effects()


def test_wish_to_stop_is_an_effect(tmp_path: Path) -> None:
    here = worker(tmp_path)
    here.model.stop_training = True

    assert here.rounds.effects().wants_stop is True


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
    keras = pytest.importorskip("keras")
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
    keras = pytest.importorskip("keras")
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
    keras = pytest.importorskip("keras")
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    here = worker(tmp_path, backup)

    here.rounds.begin()
    here.rounds.call("on_epoch_end", 0, {"loss": 1.0})

    assert not (tmp_path / "backup").exists()
    assert list(here.rounds.notes()["callbacks"]) == ["History-1"]
    assert len(here.rounds.words) == 1
