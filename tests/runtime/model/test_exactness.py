"""Replicas of all workers have the same bytes, also after a state was loaded."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from keras_harness import (
    IMAGES,
    LABELS,
    MICROBATCHES,
    bytes_of,
    contribution,
    copy_of,
    microbatch,
    train,
)

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.exchange.memory import aligned_vector
from holdfast.runtime.model.replica import Microbatch
from holdfast.runtime.run.numerics import Numerics

pytestmark = pytest.mark.tensorflow


def test_new_processes_begin_with_the_same_bytes(workers: list[Any]) -> None:
    states = [bytes_of(replica.state()) for replica in workers]

    assert states[0] == states[1] == states[2]


@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize(
    "owners", [(0, 0, 0, 1, 1), (1, 1, 0, 0, 0), (0, 0, 1, 1, 2), (2, 0, 1, 0, 2)], ids=str
)
def test_bytes_do_not_depend_on_who_computes_what(
    replicas: list[Any], initial: dict[str, np.ndarray], owners: Sequence[int], *, backwards: bool
) -> None:
    """Dropout, moving statistics, AdamW, schedule, clipping and metrics among them."""
    undisturbed = train(replicas[:1], (0,) * MICROBATCHES, range(4))
    expected = bytes_of(replicas[0].state())
    replicas[0].load(initial)

    totals = train(replicas[: max(owners) + 1], owners, range(4), backwards=backwards)

    assert totals == undisturbed
    for replica in replicas[: max(owners) + 1]:
        assert bytes_of(replica.state()) == expected
    assert expected != bytes_of(initial)


def test_another_seed_draws_another_dropout(replicas: list[Any]) -> None:
    x, y = IMAGES[:7], LABELS[:7]

    one = contribution(replicas[0], Microbatch(x, y, 1))
    again = contribution(replicas[0], Microbatch(x, y, 1))
    other = contribution(replicas[0], Microbatch(x, y, 2))

    assert one.tobytes() == again.tobytes()
    assert one.tobytes() != other.tobytes()


def test_a_contribution_overwrites_everything(replicas: list[Any]) -> None:
    """Padding included: equal microbatches make equal vectors in any old buffer."""
    batch = microbatch(0, 0)

    from_nan = contribution(replicas[0], batch, fill=np.nan)
    from_one = contribution(replicas[0], batch, fill=1.0)

    assert np.isfinite(from_nan).all()
    assert from_nan.tobytes() == from_one.tobytes()


def test_contributing_and_evaluating_change_nothing(replicas: list[Any]) -> None:
    before = bytes_of(replicas[0].state())

    contribution(replicas[0], microbatch(0, 0))
    replicas[0].evaluate(microbatch(0, 1), np.empty(replicas[0].shape.metrics, np.float32))
    replicas[0].prepare(microbatch(0, 4))
    replicas[0].results(np.ones(replicas[0].shape.metrics), 6)

    assert bytes_of(replicas[0].state()) == before


def test_a_total_need_not_be_aligned_or_writable(replicas: list[Any]) -> None:
    total = contribution(replicas[0], microbatch(0, 0))
    odd = aligned_vector(total.size + 1)[1:]
    odd[:] = total
    odd.flags.writeable = False

    replicas[0].apply(total, 7)
    replicas[1].apply(odd, 7)

    assert bytes_of(replicas[0].state()) == bytes_of(replicas[1].state())


def test_the_total_is_left_alone(replicas: list[Any]) -> None:
    total = contribution(replicas[0], microbatch(0, 0))
    before = total.tobytes()

    replicas[0].apply(total, 7)

    assert total.tobytes() == before


def keeping_model(tf: SimpleNamespace) -> Any:
    """An optimizer that holds the last gradient."""
    keras = tf.keras

    class Holding(keras.optimizers.Optimizer):
        def build(self, variables: Any) -> None:
            super().build(variables)
            self.last = self.add_optimizer_variables(variables, "last")

        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            self.assign(self.last[self._get_variable_index(variable)], gradient)
            self.assign_sub(variable, keras.ops.multiply(learning_rate, gradient))

    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(16)])
    model.compile(optimizer=Holding(0.01), loss="mse")
    return model


@pytest.mark.parametrize("mixing", ["REFUSED", "HARMLESS"])
def test_no_variable_shares_the_memory_of_a_total(tf: SimpleNamespace, mixing: str) -> None:
    """TensorFlow lets a variable share what it is given, and the next sum is written there."""
    x = np.random.default_rng(2).normal(size=(6, 16)).astype(np.float32)
    replica = tf.replica(keeping_model(tf), x, x, mixing=mixing)
    total = contribution(replica, Microbatch(x, x, 0))
    replica.apply(total, 6)
    before = bytes_of(replica.state())

    total[:] = 7.0

    assert bytes_of(replica.state()) == before


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


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("weights/other", "missing 'weights/sequential/dense/bias' .*; extra 'weights/other'"),
        ("weights/sequential/dense/bias", r"dense/bias' float32\[7\] is .* float32\[8\] there"),
    ],
)
def test_a_state_of_another_model_is_refused_and_nothing_changes(
    replicas: list[Any], name: str, words: str
) -> None:
    before = bytes_of(replicas[0].state())
    state = copy_of(replicas[0].state())
    del state["weights/sequential/dense/bias"]
    state[name] = np.zeros(8, np.float32)

    with pytest.raises(ProgramError, match=f"the state to load is of another model: .*{words}"):
        replicas[0].load(state)

    assert bytes_of(replicas[0].state()) == before


def test_numerics_that_come_too_late_are_refused(tf: SimpleNamespace) -> None:
    from holdfast.runtime.model import graphs

    with pytest.raises(ProgramError, match="cannot be set to 5 threads"):
        graphs.set_numerics(Numerics.here(threads=5), 0)
