"""Own steps of models are trained as Keras trains them, and all of their state is kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import custom_models
import keras
import numpy as np
import pytest
from custom_models import ALONE, BATCH, X, Y
from extended import extended, shortened
from keras_oracle import fresh_model, parts_of, turn_in_parts

from holdfast.runtime.exchange.memory import aligned_vector
from holdfast.runtime.model.captured_step import Number, StepLogs
from holdfast.runtime.model.model_rules import model_variables, seed_states
from holdfast.runtime.model.replica import Microbatch, map_leaves
from holdfast.runtime.model.step_contributor import KeptState
from holdfast.runtime.model.step_plan import StepPlan

pytestmark = pytest.mark.tensorflow

STEPS = 3

CASES = {
    "autoencoder": (custom_models.autoencoder, ALONE),
    "distilled": (custom_models.distilled, BATCH),
    "penalised": (custom_models.penalised, BATCH),
    "together": (custom_models.together, ALONE),
    "adversarial": (custom_models.adversarial, ALONE),
    "trailing": (custom_models.trailing, BATCH),
    "augmented": (custom_models.augmented, BATCH),
    "counting": (custom_models.counting, BATCH),
    "triplets": (custom_models.triplets, ALONE),
    "measured": (custom_models.measured, BATCH),
    "logged": (custom_models.logged, BATCH),
}
HERE = ("adversarial", "trailing", "counting", "triplets", "logged")


def replica_for(tf: SimpleNamespace, make: Callable[..., Any], batch: Microbatch) -> Any:
    return tf.replica(fresh_model(tf, make), batch.x, batch.y, batch.weights)


def parts(batch: Microbatch, count: int) -> list[Microbatch]:
    """Return parts that know how large their batch is, and draw what the whole batch draws."""
    return [
        Microbatch(p.x, p.y, batch.seed, p.weights, batch.samples) for p in parts_of(batch, count)
    ]


def train(replica: Any, batch: Microbatch, count: int, steps: int = STEPS) -> np.ndarray:
    """Train in parts; return the sums of the metrics of all steps."""
    sums = np.zeros(replica.shape.metrics)
    for _ in range(steps):
        is_done = False
        while not is_done:
            sums += turn_in_parts(replica, parts(batch, count))[replica.shape.gradient :]
            is_done = replica.turn == 0
    return sums


def fit(model: Any, batch: Microbatch) -> dict[str, float]:
    """Train a Keras model with the same batch so often; return the logs of the epoch."""
    x, y = map_leaves(lambda a: np.concatenate([a] * STEPS), (batch.x, batch.y))
    history = model.fit(x, y, batch_size=batch.samples, shuffle=False, verbose=0).history
    return {name: values[-1] for name, values in history.items()}


@pytest.mark.parametrize("count", shortened([1, 2, 3], here=[3]))
@pytest.mark.parametrize("case", shortened(CASES, here=HERE))
def test_step_in_parts_is_the_step_of_keras(tf: SimpleNamespace, case: str, count: int) -> None:
    make, batch = CASES[case]
    replica = replica_for(tf, make, parts(batch, count)[0])
    model = fresh_model(tf, make)

    sums = train(replica, batch, count)
    logs = fit(model, batch)

    for mine, theirs in zip(replica.model.variables, model.variables, strict=True):
        if "seed_generator" not in mine.path:
            np.testing.assert_allclose(
                mine.value, theirs.value, rtol=2e-4, atol=1e-6, err_msg=mine.path
            )
    shown = replica.results(sums, STEPS * batch.samples)
    assert set(shown) == set(logs)
    assert replica.notices == ()
    for name, value in logs.items():
        np.testing.assert_allclose(shown[name], value, rtol=2e-4, err_msg=name)


@pytest.mark.parametrize("case", shortened(["noisy", "adversarial"], here=["noisy"]))
def test_bytes_do_not_depend_on_who_computes_what(tf: SimpleNamespace, case: str) -> None:
    """Two workers, of which one joins in the middle of a step, end as one worker does."""
    make, batch = CASES["adversarial"]
    if case == "noisy":
        make, batch = partial(custom_models.autoencoder, noise=1.0), ALONE
    workers = [replica_for(tf, make, batch) for _ in range(3)]
    train(workers[0], batch, 3)

    for turn in range(STEPS * (2 if case == "adversarial" else 1)):
        total = aligned_vector(workers[1].shape.total)
        total[:] = 0.0
        for m, part in enumerate(parts(batch, 3)):
            out = aligned_vector(total.size)
            workers[1 + (m + turn) % 2].contribute(part, out)
            total += out
        workers[1].apply(total, batch.samples)
        workers[2].load({name: array.copy() for name, array in workers[1].state().items()})

    expected = {name: array.tobytes() for name, array in workers[0].state().items()}
    for worker in workers[1:]:
        assert {name: array.tobytes() for name, array in worker.state().items()} == expected


@pytest.mark.parametrize("case", shortened(["penalised", "logged"], here=["penalised"]))
def test_own_test_step_is_that_of_keras(tf: SimpleNamespace, case: str) -> None:
    make, batch = CASES[case]
    model = fresh_model(tf, make)
    replica = tf.replica(model, batch.x, batch.y, batch.weights, validated=batch)
    out = np.empty(replica.shape.metrics, np.float32)

    sums = np.zeros(out.size)
    for part in parts(batch, 3):
        replica.evaluate(part, out)
        sums += out
    shown = replica.results(sums, batch.samples)
    expected = replica.model.evaluate(batch.x, batch.y, batch_size=13, verbose=0, return_dict=True)

    assert shown == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("is_validated", [False, True])
def test_metrics_of_a_models_own_may_leave_out_the_loss_of_keras(
    tf: SimpleNamespace, *, is_validated: bool
) -> None:
    """As in Keras's guide to own steps: its test step counts the loss, and nobody sees it."""
    replica = tf.replica(
        fresh_model(tf, custom_models.guided), X, Y, validated=BATCH if is_validated else None
    )

    sums = train(replica, BATCH, 2)
    logs = fit(fresh_model(tf, custom_models.guided), BATCH)

    assert replica.results(sums, STEPS * BATCH.samples) == pytest.approx(logs, rel=2e-4)


def test_what_the_parts_of_a_batch_cannot_measure_is_named(tf: SimpleNamespace) -> None:
    replica = replica_for(tf, partial(custom_models.logged, oddly=True), BATCH)

    metric, number = replica.notices

    assert metric.startswith("metric 'steepest' of Logged.train_step is neither a sum nor a mean")
    assert number.startswith("'norm' in the logs of Logged.train_step is neither a mean nor a sum")


@pytest.mark.parametrize(("scale", "overflows"), [extended(2.0**10, False), (2.0**40, True)])
def test_scaled_loss_of_an_own_step(tf: SimpleNamespace, scale: float, *, overflows: bool) -> None:
    """An overflow skips the step; otherwise the gradients are those of the loss."""
    make = partial(custom_models.augmented, scale=scale)
    replica = replica_for(tf, make, BATCH)
    plain = replica_for(tf, custom_models.augmented, BATCH)
    before = [np.asarray(v.value) for v in replica.model.trainable_variables]

    total = turn_in_parts(replica, parts(BATCH, 2))
    train(plain, BATCH, 2, steps=1)

    assert np.isfinite(total).all() != overflows
    assert float(replica.model.optimizer.dynamic_scale) == (scale / 2 if overflows else scale)
    expected = before if overflows else [v.value for v in plain.model.trainable_variables]
    for variable, value in zip(replica.model.trainable_variables, expected, strict=True):
        np.testing.assert_allclose(variable.value, value, rtol=2e-2, atol=2e-3)


NUMBERS = (Number("critic", (2,)), Number("maker", ()))


def kept(*, turns: int = 1, numbers: tuple[Number, ...] = ()) -> KeptState:
    """Return the state of a step with an update in each turn, and a number in each."""
    logs = StepLogs(None, numbers, all_results=False)
    of_turns = tuple(range(turns))
    return KeptState(StepPlan(of_turns, ((),) * turns, (), (), (), of_turns[: len(numbers)], logs))


def test_numbers_are_kept_when_their_turn_comes() -> None:
    state = kept(turns=2, numbers=NUMBERS)

    state.go_on(np.array([1.0, 2.0, 9.0], np.float32))
    assert (state.turn, state.numbers.tolist()) == (1, [1.0, 2.0, 0.0])

    state.go_on(np.array([7.0, 7.0, 3.0], np.float32))
    assert (state.turn, state.numbers.tolist()) == (0, [1.0, 2.0, 3.0])


def model_with_noise() -> Any:
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(2), layers.BatchNormalization(), layers.Dropout(0.5)]
    )
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9))
    return model


def test_seeds_of_a_microbatch_are_no_part_of_the_state() -> None:
    model = model_with_noise()
    (seed,) = seed_states(model)

    variables = model_variables(model, [], kept().variables)

    assert id(seed) not in {id(variable) for variable in variables.values()}
    assert {id(v) for v in model.variables} - {id(seed)} <= {id(v) for v in variables.values()}


def test_weights_that_only_an_optimizer_knows_belong_to_the_state_once() -> None:
    """Such as those of a critic that the model holds in a plain list."""
    model, stranger = model_with_noise(), keras.Variable([1.0], name="stranger")
    other = keras.optimizers.SGD(0.1, momentum=0.9)
    for optimizer, variables in ((model.optimizer, model.trainable_variables), (other, [stranger])):
        optimizer.build(variables)

    optimizers = [other, model.optimizer, other]

    found = model_variables(model, optimizers, kept(turns=2).variables)

    ids = [id(variable) for variable in found.values()]
    assert len(set(ids)) == len(ids)
    assert ids.count(id(stranger)) == 1
    assert all(ids.count(id(v)) == 1 for o in (model.optimizer, other) for v in o.variables)
    assert found["optimizer/turn"].name == "turn"
