"""Whether a loss and its metrics can be computed in microbatches, told by real samples."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from extended import shortened
from keras_harness import build, contribution, convolutional
from keras_oracle import assert_step_of_keras, fresh_model, stepped_by_keras, stepped_in_parts

from holdfast.runtime.errors import ProgramError
from holdfast.runtime.model.replica import Microbatch

pytestmark = pytest.mark.tensorflow

RANDOM = np.random.default_rng(3)

X = RANDOM.normal(size=(12, 4)).astype(np.float32)

Y = RANDOM.normal(size=(12, 1)).astype(np.float32)


def _dense(tf: SimpleNamespace, loss: Any, *more: Any) -> Any:
    layers = tf.keras.layers
    model = tf.keras.Sequential([layers.Dense(3), *more, layers.Dense(2)])
    model.compile(optimizer="sgd", loss=loss)
    return model


def contrastive(tf: SimpleNamespace, y: Any, p: Any) -> Any:
    ops = tf.keras.ops
    return ops.sparse_categorical_crossentropy(
        ops.arange(p.shape[0]), p @ ops.transpose(p), from_logits=True
    )


def dice(tf: SimpleNamespace, y: Any, p: Any) -> Any:
    ops = tf.keras.ops
    p = ops.sigmoid(p)
    return 1 - 2 * ops.sum(p * y) / (ops.sum(p) + ops.sum(ops.abs(y)))


def hidden_mask(tf: SimpleNamespace, y: Any, p: Any) -> Any:
    ops = tf.keras.ops
    mask = ops.cast(y > 0, "float32")
    return ops.sum(mask * (p - y) ** 2) / ops.sum(mask)


def odd_power(tf: SimpleNamespace, y: Any, p: Any) -> Any:
    return tf.keras.ops.sum(tf.keras.ops.ones_like(p)) ** 2 * tf.keras.ops.mean(p**2)


def _model(loss: Callable[..., Any]) -> Callable[[SimpleNamespace], Any]:
    return lambda tf: _dense(tf, lambda y, p: loss(tf, y, p))


def mixing_layer(tf: SimpleNamespace) -> Any:
    class Centred(tf.keras.layers.Layer):
        def call(self, inputs: Any) -> Any:
            return inputs - tf.keras.ops.mean(inputs, axis=0, keepdims=True)

    return _dense(tf, "mse", Centred())


MIXING = {
    "contrastive": _model(contrastive),
    "dice": _model(dice),
    "hidden mask": _model(hidden_mask),
    "power": _model(odd_power),
    "layer": mixing_layer,
}


@pytest.mark.parametrize("case", shortened(MIXING, here=("contrastive", "hidden mask", "layer")))
def test_mixing_is_told_with_both_numbers_and_both_ways_out(tf: SimpleNamespace, case: str) -> None:
    with pytest.raises(ProgramError) as caught:
        tf.replica(fresh_model(tf, MIXING[case]), X, Y)

    words = str(caught.value)
    assert "the loss mixes the samples of a batch: " in words
    numbers = [float(word.strip(",;")) for word in words.split() if word[0].isdigit()]
    assert len({*numbers}) >= 2, words
    assert "--microbatches 1" in words
    assert "--accept-batch-mixing" in words


@pytest.mark.parametrize("mixing", shortened(["ACCEPTED", "HARMLESS"], here=["ACCEPTED"]))
def test_accepted_mixing_is_the_loss_of_each_microbatch(tf: SimpleNamespace, mixing: str) -> None:
    model = fresh_model(tf, _model(contrastive))
    replica = tf.replica(model, X, Y, mixing=mixing)
    out = contribution(replica, Microbatch(X[:5], Y[:5], 0))

    sums = replica.measures.settle(out[replica.shape.gradient :].astype(np.float64), 5)

    expected = replica.model.test_on_batch(X[:5], Y[:5])
    assert replica.results(sums, 5)["loss"] == pytest.approx(expected, rel=1e-5)


def _memory(name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition(f"{name}:")[2].split()[0])


def test_probe_holds_one_gradient_of_tensorflow_at_a_time(tf: SimpleNamespace) -> None:
    """TensorFlow may never give back what it has once taken.  How much stays is luck.

    So the peak counts: one gradient more makes it 5.1 times the weights.
    """

    def wide(units: int) -> Any:
        layers = [tf.keras.layers.Dense(each) for each in (units, units, units, 2)]
        model = tf.keras.Sequential(layers)
        model.compile(optimizer="sgd", loss="mse")
        model.build(X.shape)
        return model

    tf.replica(wide(500), X, Y)  # XLA keeps what it takes when it first compiles an update
    model = wide(2000)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak begins anew
    before = _memory("VmRSS")

    tf.replica(model, X, Y)

    assert _memory("VmHWM") - before < 4.6 * 4 * model.count_params()


def test_dropout_and_batch_normalization_are_no_mixing(tf: SimpleNamespace) -> None:
    """The first draws for places of the batch, the second has statistics of its own."""
    layers = tf.keras.layers
    noisy = _dense(tf, "mse", layers.Dropout(0.4), layers.GaussianNoise(0.3))

    assert tf.replica(noisy, X, Y).measures.is_additive
    assert build(tf, convolutional).measures.is_additive


def functional_vae(tf: SimpleNamespace, noise: float = 1.0) -> Any:
    """A layer that draws in training and in validation, and adds its divergence to the loss."""
    ops, layers = tf.keras.ops, tf.keras.layers

    class Sampling(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.generator = tf.keras.random.SeedGenerator(5)

        def call(self, inputs: Any) -> Any:
            mean, spread = inputs
            kl = -0.5 * (1 + spread - mean**2 - ops.exp(spread))
            self.add_loss(ops.mean(ops.sum(kl, axis=1)))
            drawn = tf.keras.random.normal(ops.shape(mean), seed=self.generator)
            return mean + ops.exp(0.5 * spread) * drawn * noise

    inputs = tf.keras.Input((4,))
    latent = Sampling()([layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
    model = tf.keras.Model(inputs, layers.Dense(1)(latent))
    model.compile(optimizer="adam", loss="mse", metrics=["mae"])
    return model


def raw_noise(tf: SimpleNamespace) -> Any:
    """Layers that draw from TensorFlow's operations, and from Keras's without a seed."""

    class Noise(tf.keras.layers.Layer):
        def call(self, inputs: Any, training: Any = False) -> Any:  # noqa: FBT002
            steps = tf.tensorflow.random.uniform((inputs.shape[0], 1), 1, 9, tf.tensorflow.int32)
            drawn = tf.tensorflow.random.normal(tf.tensorflow.shape(inputs))
            if training:
                drawn += tf.keras.random.uniform(tf.keras.ops.shape(inputs))
            return inputs + drawn / tf.tensorflow.cast(steps, drawn.dtype)

    return _dense(tf, "mse", Noise())


@pytest.mark.parametrize("make", shortened([functional_vae, raw_noise], here=[functional_vae]))
def test_layers_that_draw_are_no_mixing_and_draw_from_the_microbatch(
    tf: SimpleNamespace, make: Callable[[SimpleNamespace], Any]
) -> None:
    """Another worker, which has computed other microbatches before, makes the same bytes."""
    batches = [Microbatch(X[:6], Y[:6], 11), Microbatch(X[6:], Y[6:], 12)]
    one, other = (tf.replica(fresh_model(tf, make), X, Y) for _ in range(2))

    first = [contribution(one, batch).tobytes() for batch in batches]
    second = [contribution(other, batch).tobytes() for batch in batches[::-1]][::-1]

    assert first == second
    same = Microbatch(X[:6], Y[:6], 13)
    assert contribution(one, same).tobytes() != first[0]
    assert one.notices == ()


@pytest.mark.parametrize("count", shortened([1, 3], here=[3]))
def test_layer_that_adds_its_loss_is_that_of_keras(tf: SimpleNamespace, count: int) -> None:
    make = partial(functional_vae, noise=0.0)

    assert_step_of_keras(tf, make, Microbatch(X, Y, 0), count=count)


def test_state_of_layers_is_a_count_a_sum_or_a_mean(tf: SimpleNamespace) -> None:
    """Integers count steps and samples; parts of a batch leave what the batch would leave."""

    def make(tf: SimpleNamespace) -> Any:
        class Counting(tf.keras.layers.Layer):
            def build(self, shape: Any) -> None:
                def state(name: str, dtype: str) -> Any:
                    return self.add_weight((), "zeros", dtype, trainable=False, name=name)

                self.steps, self.seen = state("steps", "int64"), state("seen", "int32")
                self.power, self.mean = state("power", "float32"), state("mean", "float32")

            def call(self, inputs: Any, training: Any = False) -> Any:  # noqa: FBT002
                ops = tf.keras.ops
                if training:
                    self.steps.assign_add(1)
                    self.seen.assign_add(ops.shape(inputs)[0])
                    self.power.assign_add(ops.sum(inputs**2))
                    self.mean.assign(0.9 * self.mean + 0.1 * ops.mean(inputs))
                return inputs

        model = tf.keras.Sequential([Counting(), tf.keras.layers.Dense(1)])
        model.compile(optimizer="sgd", loss="mse")
        return model

    state, _ = stepped_in_parts(tf, make, Microbatch(X, Y, 0), count=3, steps=3)
    model, _ = stepped_by_keras(tf, make, Microbatch(X, Y, 0), steps=3)

    for variable in model.non_trainable_variables:
        found = state[f"weights/{variable.path}"]
        np.testing.assert_allclose(found, np.asarray(variable.value), rtol=1e-5)


def test_the_probe_changes_nothing(tf: SimpleNamespace) -> None:
    model = fresh_model(tf, convolutional)
    images, labels = np.ones((7, 6, 6, 1), np.float32), np.ones((7, 1))
    model(images)
    before = [np.asarray(v.value).copy() for v in model.variables]

    tf.replica(model, images, labels)

    for variable, value in zip(model.variables, before, strict=False):
        np.testing.assert_array_equal(np.asarray(variable.value), value, variable.path)


SCORES = np.array([[-3.0], [-2.0], [-1.0], [-4.0], [1.0], [2.0], [3.0], [4.0]], np.float32)

CLASSES = np.array([[0], [1], [0], [0], [1], [1], [0], [1]], np.float32)


def steep(tf: SimpleNamespace, *metrics: Any) -> Any:
    """Return a model that says yes to what is above zero."""
    layers, keras = tf.keras.layers, tf.keras
    model = keras.Sequential(
        [
            keras.Input((1,)),
            layers.Dense(1, activation="sigmoid", kernel_initializer=keras.initializers.Ones()),
        ]
    )
    model.compile("sgd", "binary_crossentropy", metrics=[*metrics, "accuracy"])
    return model


def precision(tf: SimpleNamespace, *, least: float) -> Any:
    """Return the precision of a batch as a function; ``least`` is added to the denominator."""
    ops = tf.keras.ops

    def precision_m(y: Any, p: Any) -> Any:
        return ops.sum(y * ops.round(p)) / (ops.sum(ops.round(p)) + least)

    return precision_m


def parts(replica: Any, *bounds: int) -> Any:
    """Return the settled metrics of a batch whose parts end at ``bounds``."""
    total = np.zeros(replica.shape.metrics)
    for start, stop in zip((0, *bounds), (*bounds, len(SCORES)), strict=True):
        of_part = Microbatch(SCORES[start:stop], CLASSES[start:stop], 0)
        total += contribution(replica, of_part)[replica.shape.gradient :]
    return replica.results(replica.measures.settle(total, len(SCORES)), len(SCORES))


def test_value_that_the_first_samples_do_not_show_is_no_sum(tf: SimpleNamespace) -> None:
    """None of the first samples is said yes to, so the precision is 0, and tells nothing."""
    model = lambda tf: steep(tf, precision(tf, least=1e-7))  # noqa: E731
    replica = build(tf, model, x=SCORES[:4], y=CLASSES[:4])

    found = parts(replica, 5)

    assert found["precision_m"] == pytest.approx(5 / 8 * 1.0 + 3 / 8 * 2 / 3, rel=1e-5)
    assert found["accuracy"] == pytest.approx(6 / 8)
    assert [line for line in replica.notices if "metric 'precision_m' is one value" in line]


def test_batch_that_stays_whole_has_the_value_of_keras(tf: SimpleNamespace) -> None:
    model = lambda tf: steep(tf, precision(tf, least=1e-7))  # noqa: E731

    found = parts(build(tf, model, x=SCORES[:4], y=CLASSES[:4]))

    assert found["precision_m"] == pytest.approx(3 / 4, rel=1e-5)


def kinds_of_replicas(tf: SimpleNamespace) -> list[Any]:
    model = lambda: steep(tf, precision(tf, least=0.0))  # noqa: E731
    return [
        tf.replica(model(), SCORES[:4], CLASSES[:4], mixing=mixing)
        for mixing in ("REFUSED", "ALONE")
    ]


@pytest.mark.parametrize("number", [0, 1], ids=["several", "lone"])
def test_metric_that_is_not_a_number_is_only_shown(tf: SimpleNamespace, number: int) -> None:
    replica = kinds_of_replicas(tf)[number]
    before = [np.array(weight) for weight in replica.model.get_weights()]

    total = contribution(replica, Microbatch(SCORES[:4], CLASSES[:4], 0))

    assert not np.isfinite(total).all()
    assert replica.takes_overflow(total)
    replica.apply(total, 4)
    after = replica.model.get_weights()
    assert all(np.isfinite(weight).all() for weight in after)
    assert not np.array_equal(after[0], before[0])


@pytest.mark.parametrize("number", [0, 1], ids=["several", "lone"])
def test_loss_that_is_not_a_number_ends_the_training(tf: SimpleNamespace, number: int) -> None:
    replica = kinds_of_replicas(tf)[number]
    broken = np.full_like(SCORES[:4], np.nan)

    total = contribution(replica, Microbatch(broken, CLASSES[:4], 0))

    assert not replica.takes_overflow(total)
