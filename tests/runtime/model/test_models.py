"""Models of many kinds are trained as Keras trains them: nested, in mixed precision, averaged."""

from __future__ import annotations

import functools
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from custom_models import share_above
from extended import shortened
from keras_harness import FIRST, IMAGES, LABELS, build, bytes_of, contribution, copy_of, dense
from keras_oracle import assert_step_of_keras, parts_of, stepped_in_parts, turn_in_parts

from holdfast.runtime.model.replica import Microbatch, make_model

pytestmark = pytest.mark.tensorflow


def test_embedding_gradients_are_dense(tf: SimpleNamespace) -> None:
    """Rows that no sample names get zero gradients, not leftovers."""

    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential(
            [layers.Embedding(11, 3), layers.GlobalAveragePooling1D(), layers.Dense(1)]
        )
        model.compile(optimizer="adam", loss="mse")
        return model

    words = np.array([[1, 2], [2, 4], [4, 4]], dtype=np.int32)
    replica = build(tf, make, x=words, y=np.ones((3, 1), np.float32))

    out = contribution(replica, Microbatch(words, np.ones((3, 1), np.float32), 0))

    rows = out[:33].reshape(11, 3)
    assert np.flatnonzero(np.abs(rows).sum(axis=1)).tolist() == [1, 2, 4]


@pytest.mark.parametrize("optimizer", shortened(["adam", "sgd"], here=["adam"]))
def test_embedding_that_trains_otherwise_than_in_keras_is_told(
    tf: SimpleNamespace, optimizer: str
) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Embedding(11, 3), layers.Flatten(), layers.Dense(1)])
        model.compile(optimizer=optimizer, loss="mse")
        return model

    words = np.array([[1, 2], [2, 4], [4, 4]], dtype=np.int32)
    replica = build(tf, make, x=words, y=np.ones((3, 1), np.float32))

    told = [line for line in replica.notices if "embedding" in line]
    assert len(told) == (optimizer == "adam")
    assert all("Adam gets the sum of a word's gradients" in line for line in told)


def test_a_frozen_layer_keeps_its_weights(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        model = dense(tf)
        model.layers[1].trainable = False
        return model

    replica = build(tf, make)
    before = copy_of(replica.state())

    replica.apply(contribution(replica, FIRST), 7)

    after = replica.state()
    changed = {name.lower() for name in after if after[name].tobytes() != before[name].tobytes()}
    assert changed == {
        "weights/sequential/dense_1/kernel",
        "weights/sequential/dense_1/bias",
        "optimizer/sgd/iteration",
    }


@pytest.mark.filterwarnings("ignore:Gradients do not exist")  # as plain Keras warns
def test_a_variable_without_gradient_is_skipped(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        class Unused(tf.keras.layers.Layer):
            def build(self, shape: Any) -> None:
                self.idle = self.add_weight(shape=(5,), name="idle", initializer="ones")

            def call(self, inputs: Any) -> Any:
                return inputs

        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Flatten(), Unused(), layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.AdamW(weight_decay=0.1), loss="mse")
        return model

    replica = build(tf, make)

    replica.apply(contribution(replica, FIRST), 7)

    assert replica.shape.gradient == 48 + 16
    assert replica.state()["weights/sequential/unused/idle"].tolist() == [1.0] * 5


def test_odd_and_scalar_tensors_find_their_places(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        class Scale(tf.keras.layers.Layer):
            def build(self, shape: Any) -> None:
                self.factor = self.add_weight(shape=(), name="factor", initializer="ones")

            def call(self, inputs: Any) -> Any:
                return inputs * self.factor

        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Flatten(), layers.Dense(5), Scale(), layers.Dense(1)])
        model.compile(optimizer=tf.keras.optimizers.SGD(1.0), loss="mse")
        return model

    replica = build(tf, make)
    before = copy_of(replica.state())
    out = contribution(replica, FIRST)

    replica.apply(out, 7)

    after = replica.state()
    moved = [before[n] - after[n] for n in before if n.startswith("weights/")]
    starts = np.cumsum([0] + [-(-array.size // 16) * 16 for array in moved])
    for start, array in zip(starts, moved, strict=False):
        np.testing.assert_allclose(
            out[start : start + array.size] / 7, array.reshape(-1), rtol=1e-4
        )


def test_a_custom_loss_and_metric_are_used(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        class Own(tf.keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.flatten = tf.keras.layers.Flatten()
                self.dense = tf.keras.layers.Dense(1)
                self.largest = tf.keras.metrics.MeanSquaredError(name="own")

            def call(self, inputs: Any) -> Any:
                return self.dense(self.flatten(inputs))

            def compute_loss(self, x: Any, y: Any, y_pred: Any, weights: Any, **_: Any) -> Any:
                return tf.tensorflow.reduce_mean(tf.tensorflow.abs(y_pred)) * 0 + 3.0

            def compute_metrics(self, x: Any, y: Any, y_pred: Any, **_: Any) -> Any:
                self.largest.update_state(y, y)
                return self.get_metrics_result()

        model = Own()
        model.compile(optimizer="sgd")
        return model

    replica = build(tf, make)
    out = contribution(replica, FIRST)

    results = replica.results(out[replica.shape.gradient :].astype(np.float64), 7)

    assert results == {"loss": 3.0, "own": 0.0}


def test_a_loss_that_squeezes_its_targets_is_used(tf: SimpleNamespace) -> None:
    """Of a single sample it would make a scalar, for which its next operation has no axis."""

    def loss(y: Any, prediction: Any) -> Any:
        column = tf.tensorflow.stack([tf.tensorflow.squeeze(y)], axis=1)
        return tf.keras.losses.mean_squared_error(column, prediction)

    targets = LABELS.astype(np.float32)
    assert_step_of_keras(
        tf, lambda tf: dense(tf, loss=loss), Microbatch(IMAGES[:8], targets[:8], 0), count=2
    )


def test_a_metric_keeps_the_setting_in_its_variable(tf: SimpleNamespace) -> None:
    """A level that is not zero after a reset, and that an update leaves as it is."""

    def make(tf: SimpleNamespace) -> Any:
        return dense(tf, metrics=[share_above(tf)])

    batch = Microbatch(IMAGES[:12], LABELS[:12].astype(np.float32), 0)

    assert_step_of_keras(tf, make, batch, count=3)


def test_a_metric_of_several_values_is_named_by_number(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        model = tf.keras.Sequential([layers.Flatten(), layers.Dense(2, activation="sigmoid")])
        metric = tf.keras.metrics.F1Score(average=None, threshold=0.5, name="f1")
        model.compile(optimizer="sgd", loss="binary_crossentropy", metrics=[metric])
        return model

    both = np.concatenate([LABELS, 1 - LABELS], axis=1).astype(np.float32)
    replica = build(tf, make, y=both[:7])
    sums = np.empty(replica.shape.metrics, np.float32)
    replica.evaluate(Microbatch(IMAGES[:7], both[:7], 0), sums)

    assert set(replica.results(sums.astype(np.float64), 7)) == {"loss", "f1/0", "f1/1"}


def test_a_model_instead_of_a_function_is_taken(tf: SimpleNamespace) -> None:
    model = dense(tf)

    assert callable(model)
    assert make_model(model) is model
    assert make_model(lambda: model) is model
    assert isinstance(make_model(tf.keras.Sequential), tf.keras.Sequential)


RANDOM = np.random.default_rng(11)

N = 20

WIDE = RANDOM.normal(size=(N, 5)).astype(np.float32)

DEEP = RANDOM.integers(7, size=(N, 3))

NAMES = np.array(["red", "green", "blue", "red"] * 5, dtype=object)

RATING = RANDOM.normal(size=(N, 1))  # float64, which becomes float32

KIND = RANDOM.integers(3, size=N)

SAMPLE_WEIGHTS = RANDOM.uniform(0.1, 3.0, size=N).astype(np.float32)


def _two_inputs(tf: SimpleNamespace) -> list[Any]:
    layers = tf.keras.layers
    wide = layers.Input((5,), name="wide")
    deep = layers.Input((3,), dtype="int64", name="deep")
    embedded = layers.Flatten()(layers.Embedding(7, 2)(deep))
    return [wide, deep, layers.Concatenate()([wide, embedded])]


def one_output(tf: SimpleNamespace, **compiled: Any) -> Any:
    wide, deep, both = _two_inputs(tf)
    model = tf.keras.Model([wide, deep], tf.keras.layers.Dense(1)(both))
    model.compile(
        **{"optimizer": tf.keras.optimizers.SGD(0.1, momentum=0.9), "loss": "mse", **compiled}
    )
    return model


def two_outputs(tf: SimpleNamespace, **compiled: Any) -> Any:
    wide, deep, both = _two_inputs(tf)
    layers = tf.keras.layers
    outputs = {
        "rating": layers.Dense(1, name="rating")(both),
        "kind": layers.Dense(3, activation="softmax", name="kind")(both),
    }
    model = tf.keras.Model({"wide": wide, "deep": deep}, outputs)
    losses = {"rating": "mse", "kind": "sparse_categorical_crossentropy"}
    model.compile(
        **{"optimizer": tf.keras.optimizers.SGD(0.1, momentum=0.9), "loss": losses, **compiled}
    )
    return model


def without_targets(tf: SimpleNamespace) -> Any:
    """An endpoint layer takes the targets as an input and adds the loss."""

    class Endpoint(tf.keras.layers.Layer):
        def call(self, outputs: Any, targets: Any) -> Any:
            self.add_loss(tf.keras.ops.mean((outputs - targets) ** 2))
            return outputs

    layers = tf.keras.layers
    wide, targets = layers.Input((5,), name="wide"), layers.Input((1,), name="targets")
    outputs = Endpoint()(layers.Dense(1)(wide), targets)
    model = tf.keras.Model({"wide": wide, "targets": targets}, outputs)
    model.compile(optimizer="adam")
    return model


INPUTS, OUTPUTS = {"wide": WIDE, "deep": DEEP}, {"rating": RATING, "kind": KIND}

OF_EACH_LOSS = {"rating": 0.3, "kind": 2.0}

WEIGHTED = {"rating": ["mse"], "kind": ["accuracy"]}

OF_EACH_OUTPUT = {"rating": SAMPLE_WEIGHTS, "kind": SAMPLE_WEIGHTS[::-1].copy()}

NESTS: dict[str, tuple[Callable[..., Any], dict[str, Any], Microbatch]] = {
    "list": (one_output, {}, Microbatch([WIDE, DEEP], RATING, 0)),
    "tuple": (one_output, {}, Microbatch((WIDE, DEEP), RATING, 0)),
    "weights": (
        one_output,
        {"metrics": ["mae"], "weighted_metrics": ["mae"]},
        Microbatch((WIDE, DEEP), RATING, 0, SAMPLE_WEIGHTS),
    ),
    "dicts": (
        two_outputs,
        {"loss_weights": OF_EACH_LOSS, "metrics": {"rating": ["mae"], "kind": ["accuracy"]}},
        Microbatch(INPUTS, OUTPUTS, 0),
    ),
    "dicts and one array of weights": (
        two_outputs,
        {"metrics": {"kind": ["accuracy"]}, "weighted_metrics": WEIGHTED},
        Microbatch(INPUTS, OUTPUTS, 0, SAMPLE_WEIGHTS),
    ),
    "dicts and weights of each output": (
        two_outputs,
        {"metrics": {"kind": ["accuracy"]}, "weighted_metrics": WEIGHTED},
        Microbatch(INPUTS, OUTPUTS, 0, OF_EACH_OUTPUT),
    ),
    "no targets": (without_targets, {}, Microbatch({"wide": WIDE, "targets": RATING}, None, 0)),
}
HERE = ("list", "weights", "dicts", "dicts and weights of each output", "no targets")


@pytest.mark.parametrize("count", shortened([1, 2, 3], here=[3]))
@pytest.mark.parametrize("name", shortened(NESTS, here=HERE))
def test_inputs_outputs_and_weights_may_be_nests(
    tf: SimpleNamespace, name: str, count: int
) -> None:
    make, compiled, batch = NESTS[name]

    assert_step_of_keras(tf, functools.partial(make, **compiled), batch, count=count)


def test_inputs_in_an_ordered_dict_reach_the_model_in_their_order(tf: SimpleNamespace) -> None:
    """Keras sorts the keys of a dict only: so it hands these two inputs over the other way round.

    A `tf.data` pipeline over a CSV file gives such dicts.
    """

    def make(tf: SimpleNamespace) -> Any:
        inputs = {name: tf.keras.Input((1,), name=name) for name in "za"}
        both = tf.keras.layers.Concatenate()([inputs["z"], inputs["a"]])
        model = tf.keras.Model(inputs, tf.keras.layers.Dense(1)(both))
        model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
        return model

    columns = [("z", WIDE[:, :1]), ("a", 10 * WIDE[:, 1:2])]
    for kind in (OrderedDict, dict):
        assert_step_of_keras(tf, make, Microbatch(kind(columns), RATING, 0), count=2)


def test_strings_reach_the_model(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        layers = tf.keras.layers
        name = layers.Input((1,), dtype="string", name="name")
        wide = layers.Input((5,), name="wide")
        lookup = layers.StringLookup(vocabulary=["red", "green", "blue"], output_mode="one_hot")
        both = layers.Concatenate()([lookup(name), wide])
        model = tf.keras.Model({"name": name, "wide": wide}, layers.Dense(1)(both))
        model.compile(optimizer="sgd", loss="mse")
        return model

    objects = Microbatch({"name": NAMES[:, None], "wide": WIDE}, RATING, 0)
    fixed = Microbatch({"name": NAMES[:, None].astype("U5"), "wide": WIDE}, RATING, 0)

    one, results = stepped_in_parts(tf, make, objects, count=2)
    other, _ = stepped_in_parts(tf, make, fixed, count=2)

    assert np.isfinite(results["loss"])
    assert {n: a.tobytes() for n, a in one.items()} == {n: a.tobytes() for n, a in other.items()}


def test_validation_takes_nests_too(tf: SimpleNamespace) -> None:
    x, y = INPUTS, OUTPUTS
    replica = tf.replica(two_outputs(tf), x, y, SAMPLE_WEIGHTS)
    sums = np.empty(replica.shape.metrics, np.float32)

    replica.evaluate(Microbatch(x, y, 0, SAMPLE_WEIGHTS), sums)

    weights = {"rating": SAMPLE_WEIGHTS, "kind": SAMPLE_WEIGHTS}
    logs = replica.model.test_on_batch(x, y, weights, return_dict=True)
    assert replica.results(sums.astype(np.float64), N) == pytest.approx(logs, rel=1e-5)


TARGETS = LABELS.astype(np.float32)

BATCH = 15


@contextmanager
def policy(tf: SimpleNamespace, name: str) -> Iterator[None]:
    """Build layers with another policy, which is global."""
    before = tf.keras.config.dtype_policy()
    tf.keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        tf.keras.config.set_dtype_policy(before)


def scaled(tf: SimpleNamespace, scale: float, growth: int = 2000) -> Callable[..., Any]:
    """Return a function that makes a classifier in float16, whose loss is scaled by ``scale``."""

    def make(tf: SimpleNamespace) -> Any:
        keras, layers = tf.keras, tf.keras.layers
        with policy(tf, "mixed_float16"):
            model = keras.Sequential(
                [layers.Flatten(), layers.Dense(5, activation="tanh"), layers.Dense(1)]
            )
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.01), initial_scale=scale, dynamic_growth_steps=growth
        )
        model.compile(optimizer=optimizer, loss="mse")
        return model

    return make


def step(replica: Any, parts: int, y: Any = TARGETS) -> np.ndarray:
    """Train one batch in microbatches and return the total."""
    return turn_in_parts(replica, parts_of(Microbatch(IMAGES[:BATCH], y[:BATCH], 0), parts))


def scale_of(state: dict[str, np.ndarray]) -> tuple[float, int]:
    (scale,) = (float(a) for n, a in state.items() if n.endswith("dynamic_scale"))
    (steps,) = (int(a) for n, a in state.items() if n.endswith("step_counter"))
    return scale, steps


@pytest.mark.parametrize("parts", shortened([1, 2, 3], here=[3]))
def test_float16_trains_as_keras_does(tf: SimpleNamespace, parts: int) -> None:
    replica = build(tf, scaled(tf, 2.0**10), x=IMAGES[:5], y=TARGETS[:5])
    fitted = build(tf, scaled(tf, 2.0**10), x=IMAGES[:5], y=TARGETS[:5])

    for _ in range(4):
        step(replica, parts)
        fitted.model.train_on_batch(IMAGES[:BATCH], TARGETS[:BATCH])

    ours, theirs = replica.state(), fitted.state()
    assert scale_of(ours) == scale_of(theirs) == (2.0**10, 4)
    for name in theirs:
        np.testing.assert_allclose(ours[name], theirs[name], rtol=2e-3, atol=2e-3, err_msg=name)


def test_large_microbatch_does_not_overflow_by_itself(tf: SimpleNamespace) -> None:
    """The gradients of the mean loss, scaled, fit into float16; times 60 they would not."""
    replica = build(tf, scaled(tf, 2.0**12))
    large = Microbatch(IMAGES[:60], TARGETS[:60], 0)

    assert np.isfinite(contribution(replica, large)).all()


def test_overflow_skips_the_step_and_halves_the_scale(tf: SimpleNamespace) -> None:
    replica = build(tf, scaled(tf, 2.0**40))
    before = copy_of(replica.state())

    total = step(replica, 3)

    after = copy_of(replica.state())
    assert not np.isfinite(total).all()
    assert scale_of(after) == (2.0**39, 0)
    changed = {name for name in after if after[name].tobytes() != before[name].tobytes()}
    assert {name.rsplit("/", 1)[1] for name in changed} == {"dynamic_scale"}


def test_scale_falls_until_it_fits_and_grows_again(tf: SimpleNamespace) -> None:
    replica = build(tf, scaled(tf, 2.0**24, growth=3))

    scales = []
    for _ in range(14):
        step(replica, 2)
        scales.append(scale_of(copy_of(replica.state()))[0])

    falls = [b < a for a, b in itertools.pairwise(scales)]
    grows = [b > a for a, b in itertools.pairwise(scales)]
    assert any(falls)
    assert any(grows)
    assert bytes_of(replica.state()) != {}


def test_loss_that_is_not_finite_is_not_an_overflow(tf: SimpleNamespace) -> None:
    replica = build(tf, scaled(tf, 2.0**15))
    bad = contribution(replica, Microbatch(IMAGES[:5], TARGETS[:5] * np.float32(np.nan), 0))

    assert not replica.takes_overflow(bad)


def test_without_a_dynamic_scale_an_overflow_ends_the_job(replicas: list[Any]) -> None:
    total = contribution(replicas[0], Microbatch(IMAGES[:5], LABELS[:5], 0))
    total[0] = np.inf

    assert not replicas[0].takes_overflow(total)


STEPS = 5


def averaging(tf: SimpleNamespace, overwrite: int | None = None) -> Callable[..., Any]:
    def make(tf: SimpleNamespace) -> Any:
        optimizer = tf.keras.optimizers.Adam(
            0.01, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=overwrite
        )
        return dense(tf, optimizer=optimizer)

    return make


@pytest.mark.parametrize("overwrite", shortened([None, 2], here=[None]))
@pytest.mark.parametrize("parts", shortened([1, 2, 3], here=[3]))
def test_training_ends_with_the_averages_of_fit(
    tf: SimpleNamespace, parts: int, overwrite: int | None
) -> None:
    replica = build(tf, averaging(tf, overwrite))
    fitted = build(tf, averaging(tf, overwrite))

    for _ in range(STEPS):
        step(replica, parts, LABELS)
    before = copy_of(replica.state())
    replica.finish()
    fitted.model.fit(
        IMAGES[:BATCH], LABELS[:BATCH], batch_size=BATCH, epochs=STEPS, shuffle=False, verbose=0
    )

    ours = replica.state()
    assert bytes_of(ours) != bytes_of(before)
    for name, array in fitted.state().items():
        np.testing.assert_allclose(ours[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


def test_averaging_twice_is_averaging_once(tf: SimpleNamespace) -> None:
    replica = build(tf, averaging(tf))
    step(replica, 2, LABELS)

    replica.finish()
    once = copy_of(replica.state())
    resumed = build(tf, averaging(tf))
    resumed.load(once)
    resumed.finish()

    assert bytes_of(resumed.state()) == bytes_of(once)


def test_without_averages_the_end_changes_nothing(replicas: list[Any]) -> None:
    before = bytes_of(replicas[0].state())

    replicas[0].finish()

    assert bytes_of(replicas[0].state()) == before
