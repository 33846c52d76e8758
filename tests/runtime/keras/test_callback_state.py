"""What callbacks remember goes on in another process; settings and tools are left alone."""

from __future__ import annotations

import json
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from plain import FEW_VALUES, is_same, through_json

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.keras.callback_state import (
    MOST_KEPT,
    CallbackStates,
    reached_from,
    sets_of,
)

WEIGHTS = (np.zeros((300, 300), np.float32), np.zeros(300, np.float32), np.zeros(300, np.float32))


class Callback:
    """As Keras's, as far as its state is concerned."""

    __module__ = "keras.fake"

    def __init__(self) -> None:
        self.params: Any = None
        self._model: Any = None

    def on_train_begin(self) -> None:
        pass


class EarlyStopping(Callback):
    __module__ = "keras.fake"

    def __init__(self, patience: int, restore_best_weights: bool = False) -> None:  # noqa: FBT001, FBT002
        super().__init__()
        self.patience = patience
        self.restore_best_weights = restore_best_weights
        self.monitor_op: Any = None
        self.min_delta = 0.5
        self.wait = 0
        self.best_weights: Any = None

    def on_train_begin(self) -> None:
        self.wait = 0
        self.best: Any = None
        self.best_weights = None

    def improve(self, weights: list[Any]) -> None:
        if self.monitor_op is None:
            self.monitor_op = np.less
            self.min_delta *= -1
        self.best, self.best_weights = 0.25, weights


class Losses(Callback):
    def __init__(self, losses: list[float]) -> None:
        super().__init__()
        self.losses = losses
        self.names = {"a", "b"}
        self.last = deque([1.0], maxlen=2)


class BestOfUsers(Callback):
    """In the manner of the guide "writing your own callbacks"."""

    def __init__(self) -> None:
        super().__init__()
        self.best_weights: Any = None
        self.model: Any = None

    def on_epoch_end(self) -> None:
        self.best_weights = self.model.get_weights()


class WithOwnState(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.count = 0
        self.other = 0

    def get_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Dicer(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.dice = random.Random(1)
        self.generator = np.random.default_rng(2)
        self.old = np.random.RandomState(3)


class Tracker:
    pass


class WithTools(Callback):
    def __init__(self) -> None:
        super().__init__()
        self.tracker = Tracker()
        self.lock = threading.Lock()
        self.samples = np.zeros((200, 200))
        self.kind = Tracker
        self.say = print


def begun(*callbacks: Any) -> CallbackStates:
    """Return the states of callbacks whose training has begun."""
    states = CallbackStates(callbacks, lambda: WEIGHTS)
    for callback in callbacks:
        callback.on_train_begin()
    states.begun()
    return states


def moved(source: CallbackStates, target: CallbackStates) -> None:
    """Restore ``target`` from ``source``, as a checkpoint does."""
    notes = json.loads(json.dumps(source.notes(), allow_nan=False))
    target.restore(notes, {name: np.array(t) for name, t in source.tensors().items()})


def shapes(states: CallbackStates) -> list[tuple[str, Any, Any]]:
    return [(name, t.shape, t.dtype) for name, t in states.tensors().items()]


def test_counters_go_on_and_settings_are_the_scripts() -> None:
    source, target = EarlyStopping(patience=3), EarlyStopping(patience=7)
    old, new = begun(source), begun(target)
    source.wait = 2
    source.improve([])

    moved(old, new)

    assert (target.wait, target.best, target.patience) == (2, 0.25, 7)
    assert (target.monitor_op, target.min_delta) == (np.less, -0.5)


def test_counter_of_an_earlier_training_is_not_mistaken_for_a_setting() -> None:
    """The callback was used before; the relaunch makes it anew, and skips that training."""
    source, target = EarlyStopping(3), EarlyStopping(3)
    source.wait = 2
    old, new = begun(source), begun(target)
    source.wait = 2

    moved(old, new)

    assert target.wait == 2


@pytest.mark.parametrize(
    "make", [lambda: EarlyStopping(3, restore_best_weights=True), BestOfUsers], ids=["Keras", "own"]
)
def test_best_weights_go_on_in_their_order_and_absent_ones_stay_absent(
    make: Callable[[], Any],
) -> None:
    source, target = make(), make()
    old, new = begun(source), begun(target)
    before, empty = shapes(old), old.tensors()
    target.best_weights = [np.ones_like(found) for found in WEIGHTS]
    moved(old, new)
    assert target.best_weights is None
    best = [
        np.random.default_rng(i).normal(size=w.shape).astype("f4") for i, w in enumerate(WEIGHTS)
    ]
    source.best_weights = best

    moved(old, new)

    assert is_same(target.best_weights, best)
    assert shapes(old) == before
    assert len(before) == len(WEIGHTS)
    assert not any(tensor.any() for tensor in empty.values())
    assert len(json.dumps(old.notes())) < 1000


def test_list_that_the_script_holds_too_is_filled_and_not_replaced() -> None:
    script: list[float] = []
    source, target = Losses([]), Losses(script)
    old, new = begun(source), begun(target)
    source.losses += [1.0, 2.0]
    source.names.add("c")
    source.last.append(5.0)

    moved(old, new)

    assert script == [1.0, 2.0]
    assert (target.names, list(target.last)) == ({"a", "b", "c"}, [1.0, 5.0])


def test_callback_with_get_state_keeps_what_it_says() -> None:
    source, target = WithOwnState(), WithOwnState()
    old, new = begun(source), begun(target)
    source.count, source.other = 5, 6

    moved(old, new)

    assert (target.count, target.other) == (5, 0)
    assert old.unkept() == []


def test_dice_go_on() -> None:
    source, target = Dicer(), Dicer()
    old, new = begun(source), begun(target)

    def throw(dicer: Dicer) -> tuple[float, float, float]:
        return (
            dicer.dice.random(),
            float(dicer.generator.random()),
            float(dicer.old.random_sample()),
        )

    throw(source)
    moved(old, new)

    assert throw(target) == throw(source)
    assert old.unkept() == []


def test_what_cannot_be_kept_is_named_and_tools_are_not() -> None:
    callback = WithTools()
    states = begun(callback)

    assert states.unkept() == ["WithTools.tracker (a Tracker)"]
    assert states.notes()["WithTools-1"]["attributes"] == {}

    callback.samples = np.ones((200, 200))
    assert states.unkept() == [
        "WithTools.tracker (a Tracker)",
        "WithTools.samples (an array of 320000 bytes)",
    ]
    with_bar = WithTools()
    with_bar.tracker = pytest.importorskip("tqdm").tqdm(disable=True)
    assert begun(with_bar).unkept() == []


def test_attribute_that_was_deleted_stays_deleted() -> None:
    source, target = EarlyStopping(3), EarlyStopping(3)
    old, new = begun(source), begun(target)
    del source.best

    moved(old, new)

    assert not hasattr(target, "best")


def test_callbacks_of_one_class_are_told_apart_and_a_new_one_begins_anew() -> None:
    sources, targets = [Losses([]), Losses([])], [EarlyStopping(3), Losses([]), Losses([])]
    old, new = begun(*sources), begun(*targets)
    sources[0].losses.append(1.0)
    sources[1].losses.append(2.0)

    moved(old, new)

    assert [target.losses for target in targets[1:] if isinstance(target, Losses)] == [[1.0], [2.0]]


@given(
    st.booleans(),
    *[st.dictionaries(st.sampled_from("abcd"), FEW_VALUES, max_size=3)] * 4,
)
def test_any_plain_attributes_go_on(
    is_begun: bool,  # noqa: FBT001
    before: dict[str, Any],
    middle: dict[str, Any],
    after: dict[str, Any],
    others: dict[str, Any],
) -> None:
    def make() -> tuple[Callback, CallbackStates]:
        callback = Callback()
        vars(callback).update(through_json(before))  # a copy that shares nothing
        states = CallbackStates([callback])
        if is_begun:
            vars(callback).update(through_json(middle))
        states.begun()
        return callback, states

    source, old = make()
    target, new = make()
    vars(source).update(after)
    vars(target).update(others)

    moved(old, new)

    assert is_same(sorted_attributes(target), sorted_attributes(source))


def sorted_attributes(callback: Any) -> dict[str, Any]:
    return dict(sorted(vars(callback).items()))


LEVEL = 0.0
SETTINGS = {"level": 0.0}


class Augmenter:
    def __init__(self) -> None:
        self.level = 0.0

    def read(self) -> float:
        return LEVEL + SETTINGS["level"]


class Rows:
    def __init__(self) -> None:
        self.augmenter = Augmenter()
        self.level = 0.0
        self.order = np.arange(4)
        self.cache = np.zeros(1 << 20)
        self.paths = ["a.png"] * 100_000


def test_dataset_is_kept_with_what_it_holds_and_reads() -> None:
    global LEVEL  # noqa: PLW0603  # as a script does
    rows = Rows()
    kept = CallbackStates(reached_from(rows), most=MOST_KEPT)
    rows.level = rows.augmenter.level = LEVEL = SETTINGS["level"] = 0.5
    rows.order, rows.cache[0], rows.paths[0] = rows.order[::-1].copy(), 1.0, "b.png"
    notes = json.loads(json.dumps(kept.notes()))
    LEVEL = SETTINGS["level"] = 0.0
    again = Rows()
    again.cache[0] = 1.0  # as a hook makes it again
    states = CallbackStates(reached_from(again), most=MOST_KEPT)

    states.restore(notes, {})

    assert [again.level, again.augmenter.level, LEVEL, SETTINGS["level"]] == [0.5] * 4
    assert again.order.tolist() == [3, 2, 1, 0]
    assert again.paths[0] == "a.png"
    assert "Rows.paths (a large list" in states.lost()[0]
    LEVEL = SETTINGS["level"] = 0.0


class Hard:
    def __init__(self, value: Any) -> None:
        self.hard = value


@pytest.mark.parametrize("in_place", [True, False])
@pytest.mark.parametrize("size", [20_000, 1 << 25])
def test_large_state_of_a_dataset_that_is_lost_is_refused(*, in_place: bool, size: int) -> None:
    rows = Hard(np.zeros(size, np.float64))
    kept = CallbackStates(reached_from(rows), most=MOST_KEPT)
    assert "digests" not in kept.notes()["Hard-1"]
    if in_place:
        rows.hard[:] += 1.0
    else:
        rows.hard = rows.hard + 1.0
    notes = json.loads(json.dumps(kept.notes()))
    assert len(json.dumps(notes)) < 1000

    CallbackStates([Hard(np.ones(size))], most=MOST_KEPT).restore(notes, {})
    kept.restore(notes, {})
    other = CallbackStates([Hard(np.zeros(size))], most=MOST_KEPT)
    with pytest.raises(ProgramError, match=r"^Hard\.hard, which the dataset holds or reads"):
        other.restore(notes, {})


class OfKeras(Callback):
    __module__ = "keras.fake"

    model: Any = None

    def on_epoch_end(self) -> Any:
        return self.model.get_weights()  # Keras's own code does not count


class Averager(BestOfUsers):
    def on_train_begin(self) -> Any:
        return [layer.trainable_weights for layer in self.model.layers]

    def on_train_end(self) -> Any:
        return lambda: self.model.weights


class OwnStopping(EarlyStopping):
    def on_train_end(self) -> Any:
        return self.model.get_weights()


class Setter(OfKeras):
    weights = 3

    def on_epoch_end(self) -> Any:
        self.model.set_weights([])


@pytest.mark.parametrize(
    ("callback", "sets"),
    [
        (OfKeras(), 0),
        (EarlyStopping(3), 0),
        (EarlyStopping(3, restore_best_weights=True), 1),
        (BestOfUsers(), 1),
        (Averager(), 3),
        (OwnStopping(3), 1),
        (OwnStopping(3, restore_best_weights=True), 2),
        (Setter(), 0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_sets_of_weights_that_a_callback_may_keep_are_counted(callback: Any, sets: int) -> None:
    assert sets_of(callback) == sets
