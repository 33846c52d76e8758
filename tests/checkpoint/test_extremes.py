"""States at the ends of what there is: many tensors, large ones, and every number of writers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from holdfast.checkpoint.reader import restore
from holdfast.checkpoint.record import Header
from holdfast.checkpoint.store import CheckpointStore, save
from holdfast.checkpoint.tensor import Tensor


def test_a_thousand_tensors_come_back(
    store: CheckpointStore, same_bytes: Callable[[dict[str, Tensor], dict[str, Tensor]], bool]
) -> None:
    random = np.random.default_rng(1)
    state: dict[str, Tensor] = {
        f"block {i // 10}/layer {i}/kernel": random.normal(size=(i % 37, 5)) for i in range(1000)
    }

    save(store, state, header=Header("run", 1, 1), writers=3)

    assert same_bytes(restore(store, 1).state, state)


@pytest.mark.long
@pytest.mark.extended
def test_one_tensor_of_a_gigabyte_comes_back(store: CheckpointStore) -> None:
    """Larger than what one call writes in a page cache's good time, and cut into two shards.

    The tests beside it cut small tensors.
    """
    tensor = np.arange(2**27, dtype=np.uint64)

    save(store, {"large": tensor}, header=Header("run", 1, 1), writers=2)

    restored = restore(store, 1).state["large"]
    assert restored.nbytes == 2**30
    assert np.array_equal(restored, tensor)


def test_any_number_of_writers_reads_what_any_other_has_written(
    store: CheckpointStore,
    state_of: Callable[[int], dict[str, Tensor]],
    same_bytes: Callable[[dict[str, Tensor], dict[str, Tensor]], bool],
) -> None:
    """4 -> 3 -> 8 -> 1 -> 4: each saves what it has restored."""
    state = first = state_of(2)

    for step, writers in enumerate((4, 3, 8, 1, 4), start=1):
        save(store, state, header=Header("run", step, step), writers=writers)
        restored = restore(store, step)
        assert restored.manifest.writers == writers
        state = restored.state

    assert same_bytes(state, first)
