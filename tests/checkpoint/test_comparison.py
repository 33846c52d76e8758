"""Two steps are compared by digests where that is enough, by contents where it is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from holders import STEP, WRITERS, flip, shard, small_state
from whole_save import save

from holdfast.checkpoint.errors import CheckpointInvalid
from holdfast.checkpoint.manifest import Header
from holdfast.checkpoint.scan import Comparison, compare_steps
from holdfast.checkpoint.store import CheckpointStore
from holdfast.checkpoint.tensor import Tensor


def compare(store: CheckpointStore, other: dict[str, Tensor], writers: int = WRITERS) -> Comparison:
    save(store, small_state(), header=Header("run", 1, STEP), writers=WRITERS)
    save(store, other, header=Header("run", 1, STEP + 1), writers=writers)
    return compare_saved(store)


def compare_saved(store: CheckpointStore) -> Comparison:
    return compare_steps(store.scan(STEP), store.scan(STEP + 1))


@pytest.mark.parametrize("writers", [WRITERS, 1])
def test_equal_states_have_no_differences_however_they_are_cut(
    writers: int, store: CheckpointStore
) -> None:
    found = compare(store, small_state(), writers)

    assert found == Comparison((), len(small_state()))


def test_equal_digests_are_believed_without_reading(store: CheckpointStore) -> None:
    compare(store, small_state())
    flip(shard(store, 1), 4096)

    assert compare_saved(store).differences == ()


def test_what_is_missing_extra_or_of_another_kind_is_listed_by_name(
    store: CheckpointStore,
) -> None:
    other = small_state()
    del other["flag"]
    other["bias"] = other["bias"].astype(np.float32)
    other["new"] = np.zeros(3)
    other["steps"] = other["steps"].reshape(7, 100)

    found = compare(store, other)

    kinds = [(d.name, d.left is None, d.right is None, d.elements) for d in found.differences]
    assert kinds == [
        ("bias", False, False, None),
        ("flag", False, True, None),
        ("new", True, False, None),
        ("steps", False, False, None),
    ]
    assert found.same == 1


@pytest.mark.parametrize("writers", [WRITERS, 2])
def test_changed_elements_are_counted_and_floats_measured(
    writers: int, store: CheckpointStore
) -> None:
    other = small_state()
    other["kernel"][3, 4] += 2.5
    other["kernel"][60, 89] -= 1.0
    other["steps"][7] = -1

    found = compare(store, other, writers)

    kernel, steps = found.differences
    assert (kernel.name, kernel.elements) == ("kernel", 2)
    assert kernel.largest == pytest.approx(2.5, rel=1e-6)
    assert (steps.name, steps.elements, steps.largest) == ("steps", 1, None)


def test_nan_on_one_side_is_told_and_on_both_sides_is_none(store: CheckpointStore) -> None:
    first = {"a": np.array([np.nan, 1.0]), "b": np.array([np.nan, 1.0]), "c": np.array([np.inf])}
    second = {"a": np.array([0.0, 1.0]), "b": np.array([np.nan, 3.0]), "c": np.array([-np.inf])}
    save(store, first, header=Header("run", 1, STEP))
    save(store, second, header=Header("run", 1, STEP + 1))

    a, b, c = compare_saved(store).differences

    assert a.largest is not None
    assert math.isnan(a.largest)
    assert (b.largest, c.largest) == (2.0, math.inf)


def test_contents_that_do_not_verify_are_not_compared(store: CheckpointStore) -> None:
    other = small_state()
    other["kernel"][3, 4] += 2.5
    compare(store, other)
    flip(shard(store, 1), 4096)

    with pytest.raises(CheckpointInvalid, match="have a wrong digest"):
        compare_saved(store)
