"""A step that is there already stays; another state than that to be saved is told of."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor

STEP = 30


def state_of(value: float, **more: Tensor) -> dict[str, Tensor]:
    kernel = np.arange(3000, dtype=np.float32).reshape(100, 30)
    return {
        "bias": np.full(777, value, np.float16),
        "kernel": kernel,
        "scalar": np.array(7),
        **more,
    }


def save_twice(
    store: CheckpointStore, first: dict[str, Tensor], later: dict[str, Tensor], writers: int
) -> tuple[str, ...]:
    """Save a step with three writers, then with other ones; return what is told."""
    save(store, first, header=Header("run", 2, STEP), writers=3)
    save(store, later, header=Header("run", 9, STEP), writers=writers)
    assert store.steps() == (STEP,)
    assert store.scan(STEP).manifest().generation == 2
    return store.disk.downgrades


@pytest.mark.parametrize("writers", [1, 2, 3, 5])
def test_same_state_is_acknowledged_without_a_word(store: CheckpointStore, writers: int) -> None:
    """After a death the survivors save the same step with fewer writers."""
    assert save_twice(store, state_of(1.0), state_of(1.0), writers) == ()


@pytest.mark.parametrize("writers", [1, 2, 3, 5])
def test_other_state_is_told_and_the_first_stays(store: CheckpointStore, writers: int) -> None:
    (told,) = save_twice(store, state_of(1.0), state_of(2.0), writers)

    assert told.startswith(
        "step 30 was saved before, by generation 2, and generation 9 has another state: 'bias';"
    )
    assert float(restore(store, STEP).state["bias"][0]) == 1.0


def test_single_element_counts(store: CheckpointStore) -> None:
    later = state_of(1.0)
    later["kernel"] = later["kernel"].copy()
    later["kernel"][99, 29] += 1

    (told,) = save_twice(store, state_of(1.0), later, 2)

    assert "another state: 'kernel';" in told


def test_tensors_of_one_save_alone_are_named(store: CheckpointStore) -> None:
    more = {f"extra {i}": np.zeros(3) for i in range(4)}

    (told,) = save_twice(store, state_of(1.0), state_of(1.0, **more), 3)

    assert "'extra 0', 'extra 1', 'extra 2' and 1 more" in told


def test_other_shape_is_another_state(store: CheckpointStore) -> None:
    later = state_of(1.0)
    later["kernel"] = later["kernel"].reshape(30, 100)

    (told,) = save_twice(store, state_of(1.0), later, 1)

    assert "'kernel'" in told


def test_it_is_told_once(store: CheckpointStore) -> None:
    told: set[str] = set()
    save_twice(store, state_of(1.0), state_of(2.0), 2)

    assert len(store.disk.new_downgrades(told)) == 1
    assert store.disk.new_downgrades(told) == ()
