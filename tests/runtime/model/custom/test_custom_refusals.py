"""Steps that no sum over microbatches can do are refused by name, with the way that works."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from custom_models import X, Y
from keras_oracle import fresh_model

from holdfast.runtime.errors import ProgramError

pytestmark = pytest.mark.tensorflow

StepBody = Callable[[Any, Any, Any, Any], Any]


def _own(body: StepBody, *, run_eagerly: bool = False) -> Callable[[SimpleNamespace], Any]:
    """Return what makes a model whose step is ``body(model, x, y, tf)``."""

    def make(tf: SimpleNamespace) -> Any:
        class Own(tf.keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = tf.keras.layers.Dense(2)
                self.tracker = tf.keras.metrics.Mean(name="loss")
                self.level = self.add_weight(shape=(), trainable=False, name="level")
                self.whole = self.add_weight(shape=(), dtype="int64", trainable=False, name="whole")

            def train_step(self, data: Any) -> Any:
                return body(self, *data, tf.tensorflow)

            def descend(self, x: Any, y: Any, reduce: Any = None) -> Any:
                t = tf.tensorflow
                with t.GradientTape() as tape:
                    loss = (reduce or t.reduce_mean)((self.dense(x) - y) ** 2)
                weights = self.trainable_weights
                self.optimizer.apply(tape.gradient(loss, weights), weights)
                return loss

        model = Own()
        model.compile(optimizer="sgd", run_eagerly=run_eagerly)
        return model

    return make


def metric_of_two_updates(model: Any, x: Any, y: Any, t: Any) -> Any:
    model.tracker.update_state(model.descend(x, y) + model.descend(x, y))
    return {"loss": model.tracker.result()}


def state_of_two_updates(model: Any, x: Any, y: Any, t: Any) -> Any:
    model.level.assign(model.descend(x, y) + model.descend(x, y))
    return {}


def state_after_the_update(model: Any, x: Any, y: Any, t: Any) -> Any:
    loss = model.descend(x, y)
    model.level.assign(t.reduce_mean(model.dense(x)))
    return {"loss": loss}


def statistics_of_two_updates(model: Any, x: Any, y: Any, t: Any) -> Any:
    """As those of a critic that is normalised by batches, and called again for the generator."""
    model.normalised = strangers()[0]
    model.normalised(model.dense(x), training=True)
    loss = model.descend(x, y)
    return {"loss": loss, "again": t.reduce_mean(model.normalised(model.dense(x), training=True))}


def metric_that_the_model_does_not_own(model: Any, x: Any, y: Any, t: Any) -> Any:
    strangers()[1].update_state(model.descend(x, y))
    return {}


def variable_of_tensorflow(model: Any, x: Any, y: Any, t: Any) -> Any:
    strangers()[2].assign_add(model.descend(x, y))
    return {}


def weights_before_their_update(model: Any, x: Any, y: Any, t: Any) -> Any:
    """A tape would find no gradient of them, and they would silently not be trained."""
    for weight in model.dense.trainable_weights:
        weight.assign(t.clip_by_value(weight, -0.1, 0.1))
    return {"loss": model.descend(x, y)}


def sum_beside_a_mean(model: Any, x: Any, y: Any, t: Any) -> Any:
    """A sum over samples alone is trained as a sum, and a mean as a mean."""
    return {"loss": model.descend(x, y, lambda e: t.reduce_sum(e) + 9.0 * t.reduce_mean(e))}


def clipped_by_itself(model: Any, x: Any, y: Any, t: Any) -> Any:
    with t.GradientTape() as tape:
        loss = t.reduce_mean((model.dense(x) - y) ** 2)
    weights = model.trainable_weights
    clipped, _ = t.clip_by_global_norm(tape.gradient(loss, weights), 0.01)
    model.optimizer.apply(clipped, weights)
    return {"loss": loss}


def integers_that_are_no_count(model: Any, x: Any, y: Any, t: Any) -> Any:
    model.whole.assign(t.cast(t.reduce_max(100.0 * x), t.int64))
    return {"loss": model.descend(x, y)}


@functools.cache
def strangers() -> tuple[Any, Any, Any]:
    """Return a layer, a metric and a variable that no model owns yet."""
    import keras
    import tensorflow

    metric = keras.metrics.Mean(name="stranger")
    return keras.layers.BatchNormalization(), metric, tensorflow.Variable(0.0)


def _with_state(change: Callable[[Any, Any, Any], Any]) -> StepBody:
    """Return a step that changes ``model.level``, behind a dropout."""

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        loss = model.descend(t.nn.dropout(x, 0.4), y)
        model.level.assign(change(model.level, t.nn.dropout(x, 0.4), t))
        return {"loss": loss}

    return body


REFUSED: list[tuple[StepBody, str]] = [
    (lambda model, x, y, t: {"loss": t.reduce_mean(model.dense(x))}, r"hands no gradients to an"),
    (lambda model, x, y, t: model.descend(x, y), r"returns a tensor, not its logs"),
    (
        metric_of_two_updates,
        r"both before and after an optimizer's update.* of its own for each loss",
    ),
    (
        state_of_two_updates,
        r"^own/level of Own\.train_step .*one variable for each update in the model",
    ),
    (state_after_the_update, r"own/level of Own\.train_step is computed from the microbatch after"),
    (statistics_of_two_updates, r"moving_mean.*call that network with training=False after its"),
    (metric_that_the_model_does_not_own, r"neither a variable nor a metric of the model"),
    (variable_of_tensorflow, r"changes a variable behind Keras"),
    (weights_before_their_update, r"assigns 'dense/kernel' before an optimizer updates it"),
]


@pytest.mark.parametrize(("body", "said"), REFUSED)
def test_step_that_no_sum_can_do(tf: SimpleNamespace, body: StepBody, said: str) -> None:
    with pytest.raises(ProgramError, match=said):
        tf.replica(fresh_model(tf, _own(body)), X[:7], Y[:7], mixing="ACCEPTED")


MIXING: list[tuple[StepBody, str]] = [
    (
        sum_beside_a_mean,
        r"^Own\.train_step mixes.* neither a mean nor a sum over.*--microbatches 1",
    ),
    (clipped_by_itself, r"leave clipping to the optimizer \(global_clipnorm=\.\.\.\)"),
    (integers_that_are_no_count, r"'own/whole' of type int64.*let it count steps or samples"),
    # As the counts of a codebook: microbatches cannot scale what was there before apart.
    (
        _with_state(lambda level, x, t: 0.9 * level + t.reduce_sum(x**2)),
        r"^Own\.train_step adds 'own/level' up .*keras\.metrics\.Sum.*--microbatches 1",
    ),
]


@pytest.mark.parametrize(("body", "said"), MIXING)
def test_step_that_microbatches_cannot_do_apart(
    tf: SimpleNamespace, body: StepBody, said: str
) -> None:
    with pytest.raises(ProgramError, match=said):
        tf.replica(fresh_model(tf, _own(body)), X[:7], Y[:7], mixing="REFUSED")


def test_step_that_only_runs_eagerly(tf: SimpleNamespace) -> None:
    make = _own(lambda model, x, y, t: {"loss": float(model.descend(x, y))}, run_eagerly=True)

    said = r"^Own\.train_step runs in Keras only with run_eagerly=True.* TensorFlow or keras\.ops"
    with pytest.raises(ProgramError, match=said):
        tf.replica(fresh_model(tf, make), X[:7], Y[:7])


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("control", ["cond", "ops.cond", "while_loop"])
def test_update_in_a_branch_or_a_loop(
    tf: SimpleNamespace, control: str, *, run_eagerly: bool
) -> None:
    """Such as one of every third batch, for which the optimizer has an argument."""

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        def update() -> Any:
            return model.descend(x, y)

        if control == "while_loop":
            loss = t.while_loop(lambda n, _: n < 2, lambda n, _: (n + 1, update()), (0, 0.0))[1]
        else:
            cond = t.cond if control == "cond" else tf.keras.ops.cond
            loss = cond(t.reduce_sum(x) > 0, update, lambda: 0.0)
        return {"loss": loss}

    said = r"calls its optimizer within tf\.cond or a loop.*gradient_accumulation_steps=N"
    with pytest.raises(ProgramError, match=said):
        tf.replica(fresh_model(tf, _own(body, run_eagerly=run_eagerly)), X[:7], Y[:7])


def test_step_that_needs_its_batch_whole_may_have_it(tf: SimpleNamespace) -> None:
    def make(tf: SimpleNamespace) -> Any:
        class Pairs(tf.keras.Model):
            def __init__(self) -> None:
                super().__init__()
                self.dense = tf.keras.layers.Dense(2)

            def train_step(self, data: Any) -> Any:
                first, second = data[0], data[1]  # the first axis counts no samples
                with tf.tensorflow.GradientTape() as tape:
                    loss = tf.tensorflow.reduce_mean((self.dense(first) - self.dense(second)) ** 2)
                weights = self.trainable_weights
                self.optimizer.apply(tape.gradient(loss, weights), weights)
                return {"loss": loss}

        model = Pairs()
        model.compile(optimizer="sgd")
        return model

    pairs = X[:6].reshape(2, 3, -1)

    tf.replica(fresh_model(tf, make), pairs, None, mixing="HARMLESS")
    with pytest.raises(Exception, match="out of bounds"):
        tf.replica(fresh_model(tf, make), pairs, None, mixing="REFUSED")


@pytest.mark.parametrize(
    "change",
    [
        lambda level, x, t: t.maximum(level, t.reduce_max(x)),
        lambda level, x, t: 0.9 * level + 0.1 * t.reduce_sum(t.math.reduce_variance(x, 0)),
    ],
    ids=["maximum", "variance"],
)
def test_state_that_is_neither_a_mean_nor_a_sum_is_named(
    tf: SimpleNamespace, change: Callable[[Any, Any, Any], Any]
) -> None:
    model = fresh_model(tf, _own(_with_state(change)))
    replica = tf.replica(model, X[:7], Y[:7], mixing="REFUSED")

    (notice,) = replica.notices
    assert notice.startswith("state 'own/level' is neither a mean nor a sum over samples")
