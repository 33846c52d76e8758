"""Steps in microbatches beside the step that Keras makes of the undivided batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
from keras_harness import contribution, copy_of

from holdfast.runtime.exchange.memory import aligned_vector
from holdfast.runtime.model.model_rules import model_variables
from holdfast.runtime.model.replica import Microbatch, map_leaves

Make = Callable[[SimpleNamespace], Any]

UNEVEN = {1: (1.0,), 2: (0.6,), 3: (0.2, 0.7)}
"""Where a batch is cut into so many parts of different sizes."""


def parts_of(batch: Microbatch, count: int) -> list[Microbatch]:
    """Return the batch in ``count`` parts of different sizes."""
    cuts = [round(cut * batch.samples) for cut in UNEVEN[count] if cut < 1.0]
    bounds = [0, *cuts, batch.samples]
    return [batch.rows(slice(a, b)) for a, b in itertools.pairwise(bounds)]


def fresh_model(tf: SimpleNamespace, make: Make) -> Any:
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    return make(tf)


def turn_in_parts(replica: Any, parts: Sequence[Microbatch]) -> np.ndarray:
    """Do one turn of a step on a batch in parts, also if it overflows; return the total."""
    total = aligned_vector(replica.shape.total)
    total[:] = 0.0
    for part in parts:
        with np.errstate(invalid="ignore"):  # inf - inf
            total += contribution(replica, part)
    assert np.isfinite(total).all() or replica.takes_overflow(total)
    replica.apply(total, sum(part.samples for part in parts))
    return total


def stepped_in_parts(
    tf: SimpleNamespace, make: Make, batch: Microbatch, *, count: int, steps: int = 2
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Return the state after steps on the batch in parts, and the results of the last step."""
    parts = parts_of(batch, count)
    replica = tf.replica(fresh_model(tf, make), parts[0].x, parts[0].y, parts[0].weights)
    for _ in range(steps):
        total = turn_in_parts(replica, parts)
    sums = total[replica.shape.gradient :].astype(np.float64)
    return copy_of(replica.state()), replica.results(
        replica.measures.settle(sums, batch.samples), batch.samples
    )


def evaluated_in_parts(replica: Any, batch: Microbatch, *, count: int) -> dict[str, float]:
    """Return the results of a validation batch in parts."""
    one = np.empty(replica.shape.metrics, np.float32)
    sums = np.zeros(replica.shape.metrics)
    for part in parts_of(batch, count):
        replica.evaluate(part, one)
        sums += one
    return replica.results(replica.measures.settle(sums, batch.samples), batch.samples)


def stepped_by_keras(
    tf: SimpleNamespace, make: Make, batch: Microbatch, *, steps: int = 2
) -> tuple[Any, dict[str, float]]:
    """Return the model after the same steps by Keras, and the logs of the last one."""
    model = fresh_model(tf, make)
    tensors = map_leaves(lambda a: a, batch.parts)
    for _ in range(steps):
        logs = model.train_on_batch(*tensors, return_dict=True)
    return model, {name: float(value) for name, value in logs.items()}


def assert_step_of_keras(
    tf: SimpleNamespace, make: Make, batch: Microbatch, *, count: int, rtol: float = 2e-4
) -> None:
    """Compare the state and the logs after two steps with those of Keras."""
    state, results = stepped_in_parts(tf, make, batch, count=count)
    model, logs = stepped_by_keras(tf, make, batch)
    compared = 0
    wanted = {id(v) for v in (*model.trainable_variables, *model.optimizer.variables)}
    for name, variable in model_variables(model).items():
        if id(variable) in wanted and name in state:
            compared += 1
            np.testing.assert_allclose(
                state[name], np.asarray(variable.value), rtol=rtol, atol=1e-5, err_msg=name
            )
    assert compared >= len(model.trainable_variables)
    assert set(results) == set(logs)
    for name, value in logs.items():
        np.testing.assert_allclose(results[name], value, rtol=rtol, atol=1e-6, err_msg=name)
