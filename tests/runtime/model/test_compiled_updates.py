"""XLA compiles the update where it can, with the same bytes alone and together; else it stays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from extended import shortened
from keras_harness import FIRST, bytes_of, contribution, dense, microbatch
from keras_oracle import fresh_model

from holdfast.runtime.model.batch_mixing import BatchMixing
from holdfast.runtime.model.choose import replica_of_keras
from holdfast.runtime.run.numerics import Numerics

pytestmark = pytest.mark.tensorflow

Make = Callable[[SimpleNamespace], Any]


LARGE = 3000, 90
"""Units of a model for whose update XLA is worth while."""


def _optimizer(name: str, **settings: Any) -> Make:
    return lambda tf: dense(tf, *LARGE, optimizer=getattr(tf.keras.optimizers, name)(**settings))


def _scheduled(tf: SimpleNamespace) -> Any:
    schedule = tf.keras.optimizers.schedules.CosineDecay(0.1, 3)
    return dense(tf, *LARGE, optimizer=tf.keras.optimizers.SGD(schedule, momentum=0.9))


def _scaled(tf: SimpleNamespace) -> Any:
    optimizer = tf.keras.optimizers.LossScaleOptimizer(tf.keras.optimizers.Adam(), 2.0**10)
    return dense(tf, *LARGE, optimizer=optimizer)


def _several(tf: SimpleNamespace) -> Any:
    """Two optimizers, each for some weights."""
    one, other = tf.keras.optimizers.Adam(0.01), tf.keras.optimizers.SGD(0.1)
    both = tf.keras.optimizers.MultiOptimizer(lambda v: one if v.name == "bias" else other)
    return dense(tf, *LARGE, optimizer=both)


def _embedding(tf: SimpleNamespace) -> Any:
    """Rows that a batch names more than once."""
    layers, ops = tf.keras.layers, tf.keras.ops
    rows = [layers.Flatten(), layers.Lambda(lambda x: ops.cast(10 * abs(x), "int32"))]
    model = tf.keras.Sequential(
        [*rows, layers.Embedding(64, 4500), layers.Flatten(), layers.Dense(1)]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


COMPILED: dict[str, Make] = {
    "SGD": _optimizer("SGD", learning_rate=0.1, momentum=0.9, nesterov=True),
    "decay and clipping by the global norm": _optimizer(
        "AdamW", weight_decay=0.1, global_clipnorm=0.02
    ),
    "averages": _optimizer("Adam", use_ema=True, ema_overwrite_frequency=2),
    "accumulation": _optimizer("Adam", gradient_accumulation_steps=2, clipnorm=0.1),
    "RMSprop": _optimizer("RMSprop", centered=True, clipvalue=0.1),
    "Adadelta": _optimizer("Adadelta"),
    "Adafactor": _optimizer("Adafactor"),
    "Adagrad": _optimizer("Adagrad"),
    "Adamax": _optimizer("Adamax"),
    "Nadam": _optimizer("Nadam"),
    "Ftrl": _optimizer("Ftrl"),
    "Lion": _optimizer("Lion"),
    "LAMB": _optimizer("Lamb"),
    "Muon": _optimizer("Muon"),
    "schedule": _scheduled,
    "scale of the loss": _scaled,
    "several optimizers": _several,
    "rows": _embedding,
}


def _own(update: Callable[[SimpleNamespace, Any], Any]) -> Make:
    """A model whose optimizer hands each gradient to ``update`` first."""

    def make(tf: SimpleNamespace) -> Any:
        class Own(tf.keras.optimizers.SGD):  # type: ignore[misc, name-defined]
            def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
                super().update_step(update(tf.tensorflow, gradient), variable, learning_rate)

        return dense(tf, *LARGE, optimizer=Own(0.1))

    return make


def _by_python(tf: Any, gradient: Any) -> Any:
    seen = tf.numpy_function(lambda found: 2 * found, [gradient], tf.float32)
    return tf.ensure_shape(seen, gradient.shape)


def _checked(tf: Any, gradient: Any) -> Any:
    return tf.debugging.check_numerics(gradient, "a gradient is not finite")


def _drawn(tf: Any, gradient: Any) -> Any:
    return gradient + tf.random.normal(gradient.shape, stddev=0.1)


def _drawn_by_seed(tf: Any, gradient: Any) -> Any:
    return gradient + tf.random.stateless_normal(gradient.shape, (1, 2), stddev=0.1)


def _by_handle(tf: SimpleNamespace) -> Any:
    """An optimizer that calls the kernel of momentum, which changes what its handle names."""

    class Own(tf.keras.optimizers.SGD):  # type: ignore[misc, name-defined]
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            place = self.momentums[self._get_variable_index(variable)]
            tf.tensorflow.raw_ops.ResourceApplyKerasMomentum(
                var=variable.handle,
                accum=place.value.handle,
                lr=learning_rate,
                grad=gradient,
                momentum=0.9,
            )

    return dense(tf, *LARGE, optimizer=Own(0.1, momentum=0.9))


NOT_COMPILED = {
    "Python": _own(_by_python),
    "a check that XLA leaves out": _own(_checked),
    "a draw that XLA draws anew": _own(_drawn),
    "a draw by a seed, which XLA draws otherwise": _own(_drawn_by_seed),
    "weights by their handles": _by_handle,
}


def _replica(tf: SimpleNamespace, make: Make, mixing: BatchMixing) -> Any:
    return replica_of_keras(fresh_model(tf, make), FIRST, mixing)


def _is_compiled(replica: Any) -> bool:
    """Return whether a graph of the step holds a function that XLA must compile."""
    functions = (f for graph in replica.graphs for f in graph.graph.as_graph_def().library.function)
    return any(
        node.attr["_XlaMustCompile"].b or function.attr["_XlaMustCompile"].b
        for function in functions
        for node in function.node_def
    )


def _state_after(replica: Any, steps: int) -> dict[str, bytes]:
    """Train on batches of 7 and 6 samples: a division by them is not exact."""
    for step in range(steps):
        batch = microbatch(step, 0 if step % 2 else 4)
        replica.apply(contribution(replica, batch), batch.samples)
    return bytes_of(replica.state())


@pytest.mark.parametrize(
    "case",
    shortened(COMPILED, here=["decay and clipping by the global norm", "several optimizers"]),
)
def test_compiled_updates_make_the_same_bytes_alone_and_together(
    tf: SimpleNamespace, case: str
) -> None:
    alone, summing = (
        _replica(tf, COMPILED[case], mixing) for mixing in (BatchMixing.ALONE, BatchMixing.HARMLESS)
    )

    assert _is_compiled(alone)
    assert _is_compiled(summing)
    assert _state_after(alone, 4) == _state_after(summing, 4)


@pytest.mark.parametrize("case", NOT_COMPILED)
def test_what_xla_would_change_stays_a_graph(tf: SimpleNamespace, case: str) -> None:
    replica = _replica(tf, NOT_COMPILED[case], BatchMixing.HARMLESS)

    assert not _is_compiled(replica)
    assert _state_after(replica, 2)


def test_a_small_update_stays_a_graph(tf: SimpleNamespace) -> None:
    make = lambda tf: dense(tf, 100, 90, optimizer="adam")  # noqa: E731

    assert not _is_compiled(_replica(tf, make, BatchMixing.HARMLESS))


@pytest.fixture
def without_xla(tf: SimpleNamespace) -> Iterator[None]:
    from holdfast.runtime.model.graphs import set_numerics

    numerics = Numerics.here(threads=1)
    set_numerics(Numerics.here(threads=1, xla=False), 7)
    yield
    set_numerics(numerics, 7)


def _one_kernel(tf: SimpleNamespace) -> Any:
    layers = tf.keras.layers
    kernel = layers.Dense(8000, use_bias=False)
    model = tf.keras.Sequential([layers.Flatten(), kernel])
    model.compile(optimizer=tf.keras.optimizers.SGD(1.0), loss="mse")
    return model


def _stepped(tf: SimpleNamespace) -> tuple[Any, Any, int]:
    """Return weights that were 0 after a step at the rate 1, and the sums that it has applied."""
    model, batch = fresh_model(tf, _one_kernel), microbatch(0, 0)
    model(batch.x)
    model.set_weights([np.zeros_like(each) for each in model.get_weights()])
    replica = replica_of_keras(model, FIRST, BatchMixing.REFUSED)
    total = contribution(replica, batch)
    replica.apply(total, batch.samples)
    (kernel,) = (each for name, each in replica.state().items() if name.endswith("kernel"))
    weights = np.asarray(kernel).reshape(-1)
    return weights, total[: len(weights)].copy(), batch.samples


def test_a_compiled_update_takes_sums_by_the_reciprocal_of_the_samples(tf: SimpleNamespace) -> None:
    weights, sums, samples = _stepped(tf)

    assert weights.tobytes() == (-sums * (np.float32(1) / np.float32(samples))).tobytes()


@pytest.mark.usefixtures("without_xla")
def test_an_update_without_xla_divides_the_sums(tf: SimpleNamespace) -> None:
    weights, sums, samples = _stepped(tf)

    assert weights.tobytes() == (-sums / np.float32(samples)).tobytes()


@pytest.mark.usefixtures("without_xla")
def test_a_run_that_began_without_xla_goes_on_without(tf: SimpleNamespace) -> None:
    replica = _replica(tf, COMPILED["SGD"], BatchMixing.HARMLESS)

    assert not _is_compiled(replica)
    assert _state_after(replica, 2)
