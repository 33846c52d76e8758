"""The state of a Keras replica, out and in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras_harness import (
    MICROBATCHES,
    bytes_of,
    copy_of,
    train,
)

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.memory import aligned_vector

pytestmark = pytest.mark.tensorflow


def test_a_loaded_state_goes_on_with_the_same_bytes(
    replicas: list[Any], initial: dict[str, np.ndarray]
) -> None:
    train(replicas[:1], (0,) * MICROBATCHES, range(3))
    saved = copy_of(replicas[0].state())
    train(replicas[:1], (0,) * MICROBATCHES, range(3, 6))

    replicas[1].load(saved)
    train(replicas[1:2], (0,) * MICROBATCHES, range(3, 6))

    assert bytes_of(replicas[1].state()) == bytes_of(replicas[0].state())


def test_state_is_a_read_only_view_that_keeps_its_values(replicas: list[Any]) -> None:
    first, second = replicas[0].state(), replicas[0].state()
    before = bytes_of(first)

    assert all(np.shares_memory(first[name], second[name]) for name in first)
    assert not any(array.flags.writeable for array in first.values())
    train(replicas[:1], (0,) * MICROBATCHES, range(1))

    assert bytes_of(first) == before
    assert bytes_of(replicas[0].state()) != before


def test_a_loaded_array_belongs_to_its_owner(replicas: list[Any]) -> None:
    """Updates after a load may not write into the array, nor the array's owner into the model."""
    loaded = {}
    for name, array in replicas[0].state().items():
        if array.dtype == np.float32:
            loaded[name] = aligned_vector(array.size).reshape(array.shape)
            loaded[name][...] = array
        else:
            loaded[name] = array.copy()
    before = bytes_of(loaded)

    replicas[0].load(loaded)
    train(replicas[:1], (0,) * MICROBATCHES, range(1))
    after_step = bytes_of(replicas[0].state())
    assert bytes_of(loaded) == before
    for array in loaded.values():
        array[...] = 0
    assert bytes_of(replicas[0].state()) == after_step


def test_state_names_everything_once(replicas: list[Any]) -> None:
    state = replicas[0].state()

    assert state["weights/sequential/conv2d/kernel"].shape == (3, 3, 1, 4)
    assert state["weights/sequential/batch_normalization/moving_mean"].shape == (4,)
    (optimizer,) = {name.split("/")[1] for name in state if name.startswith("optimizer/")}
    assert state[f"optimizer/{optimizer}/iteration"].dtype == np.int64
    assert f"optimizer/{optimizer}/sequential_dense_kernel_velocity" in state
    assert not [name for name in state if "seed" in name]
    assert len(state) == 10 + 1 + 2 * 8


def test_a_state_of_another_model_is_refused_and_nothing_changes(replicas: list[Any]) -> None:
    before = bytes_of(replicas[0].state())
    state = copy_of(replicas[0].state())
    state["weights/other"] = state.pop("weights/sequential/dense/bias")

    with pytest.raises(ProgramError, match="missing weights/sequential/dense/bias, unknown weig"):
        replicas[0].load(state)

    assert bytes_of(replicas[0].state()) == before


def test_a_state_of_another_shape_is_refused_and_nothing_changes(replicas: list[Any]) -> None:
    before = bytes_of(replicas[0].state())
    state = {name: np.zeros_like(array) for name, array in replicas[0].state().items()}
    state["weights/sequential/dense/bias"] = np.zeros(8, np.float32)

    with pytest.raises(ProgramError, match=r"dense/bias' has shape and type \(\(8,\)"):
        replicas[0].load(state)

    assert bytes_of(replicas[0].state()) == before


def test_numerics_that_come_too_late_are_refused(tf: SimpleNamespace) -> None:
    from holdfast.runtime.model import graphs

    with pytest.raises(ProgramError, match="cannot be set to 5 threads"):
        graphs.set_numerics(5, 0, deterministic=False)
