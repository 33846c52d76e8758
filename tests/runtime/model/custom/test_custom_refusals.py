"""Steps that no sum over microbatches can do are refused by name, with the way that works."""

from __future__ import annotations

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


def refused(
    tf: SimpleNamespace,
    body: StepBody,
    *,
    refuses_mixing: bool = False,
    run_eagerly: bool = False,
) -> str:
    """Return the message for a model whose step is ``body(model, x, y, tf)``."""
    mixing = "REFUSED" if refuses_mixing else "ACCEPTED"
    make = _own(body, run_eagerly=run_eagerly)
    with pytest.raises(ProgramError) as caught:
        tf.replica(fresh_model(tf, make), X[:7], Y[:7], mixing=mixing)
    return str(caught.value)


def test_step_without_an_update(tf: SimpleNamespace) -> None:
    message = refused(tf, lambda model, x, y, t: {"loss": t.reduce_mean(model.dense(x) - y)})

    assert message.startswith("Own.train_step hands no gradients to an optimizer")


def test_step_that_returns_no_logs(tf: SimpleNamespace) -> None:
    message = refused(tf, lambda model, x, y, t: model.descend(x, y))

    assert "Own.train_step returns a tensor, not its logs" in message


def test_metric_from_before_and_after_an_update(tf: SimpleNamespace) -> None:
    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        first = model.descend(x, y)
        model.tracker.update_state(first + model.descend(x, y))
        return {"loss": model.tracker.result()}

    message = refused(tf, body)

    assert "computed from variables both before and after an optimizer's update" in message
    assert "use a metric of its own for each loss" in message


def test_state_from_the_batch_after_the_last_update(tf: SimpleNamespace) -> None:
    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        loss = model.descend(x, y)
        model.level.assign(t.reduce_mean(model.dense(x)))
        return {"loss": loss}

    message = refused(tf, body)

    assert "own/level of Own.train_step is computed from the microbatch after" in message


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

    message = refused(tf, body, run_eagerly=run_eagerly)

    assert "Own.train_step calls its optimizer within tf.cond or a loop" in message
    assert "give the optimizer gradient_accumulation_steps=N" in message


def test_variable_that_the_model_does_not_own(tf: SimpleNamespace) -> None:
    stranger = tf.keras.metrics.Mean(name="stranger")

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        loss = model.descend(x, y)
        stranger.update_state(loss)
        return {"loss": loss}

    message = refused(tf, body)

    assert "which is neither a variable nor a metric of the model" in message


def test_variable_of_tensorflow_that_the_step_assigns(tf: SimpleNamespace) -> None:
    counter = tf.tensorflow.Variable(0.0)

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        loss = model.descend(x, y)
        counter.assign_add(1.0)
        return {"loss": loss}

    message = refused(tf, body)

    assert "changes a variable behind Keras" in message


def test_loss_that_is_a_sum_beside_a_mean(tf: SimpleNamespace) -> None:
    """A sum over samples alone is trained as a sum, and a mean as a mean."""

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        def odd(errors: Any) -> Any:
            return t.reduce_sum(errors) + 9.0 * t.reduce_mean(errors)

        return {"loss": model.descend(x, y, odd)}

    message = refused(tf, body, refuses_mixing=True)

    assert message.startswith("Own.train_step mixes the samples of a batch: ")
    assert "neither a mean nor a sum over samples" in message
    assert "--microbatches 1" in message


def test_state_of_several_updates(tf: SimpleNamespace) -> None:
    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        first = model.descend(x, y)
        model.level.assign(first + model.descend(x, y))
        return {"first": first}

    message = refused(tf, body)

    assert message.startswith("own/level of Own.train_step is computed from variables both before")
    assert message.endswith("keep one variable for each update in the model")


def test_step_that_only_runs_eagerly(tf: SimpleNamespace) -> None:
    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        return {"loss": float(model.descend(x, y))}

    message = refused(tf, body, run_eagerly=True)

    assert message.startswith("Own.train_step runs in Keras only with run_eagerly=True")
    assert "use operations of TensorFlow or keras.ops" in message


def test_weights_that_are_assigned_before_their_update(tf: SimpleNamespace) -> None:
    """A tape would find no gradient of them, and they would silently not be trained."""

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        for weight in model.dense.trainable_weights:
            weight.assign(t.clip_by_value(weight, -0.1, 0.1))
        return {"loss": model.descend(x, y)}

    message = refused(tf, body)

    assert "Own.train_step assigns 'dense/kernel' before an optimizer updates it" in message


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


def test_gradients_that_a_step_clips_by_itself(tf: SimpleNamespace) -> None:
    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        with t.GradientTape() as tape:
            loss = t.reduce_mean((model.dense(x) - y) ** 2)
        weights = model.trainable_weights
        clipped, _ = t.clip_by_global_norm(tape.gradient(loss, weights), 0.01)
        model.optimizer.apply(clipped, weights)
        return {"loss": loss}

    message = refused(tf, body, refuses_mixing=True)

    assert "leave clipping to the optimizer (global_clipnorm=...)" in message


def test_statistics_that_are_moved_before_and_after_an_update(tf: SimpleNamespace) -> None:
    """As those of a critic that is normalised by batches, and called again for the generator."""
    normalised = tf.keras.layers.BatchNormalization()

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        model.normalised = normalised
        normalised(model.dense(x), training=True)
        loss = model.descend(x, y)
        return {"loss": loss, "again": t.reduce_mean(normalised(model.dense(x), training=True))}

    message = refused(tf, body)

    assert "moving_mean" in message
    assert "call that network with training=False after its update" in message


def _with_state(change: Callable[[Any, Any, Any], Any]) -> StepBody:
    """Return a step that changes ``model.level``, behind a dropout."""

    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        loss = model.descend(t.nn.dropout(x, 0.4), y)
        model.level.assign(change(model.level, t.nn.dropout(x, 0.4), t))
        return {"loss": loss}

    return body


def test_sum_over_samples_that_decays(tf: SimpleNamespace) -> None:
    """As the counts of a codebook: its microbatches cannot scale what was there before apart."""
    message = refused(
        tf, _with_state(lambda level, x, t: 0.9 * level + t.reduce_sum(x**2)), refuses_mixing=True
    )

    assert message.startswith("Own.train_step adds 'own/level' up over the samples of a batch")
    assert "keras.metrics.Sum" in message
    assert "--microbatches 1" in message


def test_integers_that_are_no_count(tf: SimpleNamespace) -> None:
    def body(model: Any, x: Any, y: Any, t: Any) -> Any:
        model.whole.assign(t.cast(t.reduce_max(100.0 * x), t.int64))
        return {"loss": model.descend(x, y)}

    message = refused(tf, body, refuses_mixing=True)

    assert message.startswith("Own.train_step changes 'own/whole' of type int64")
    assert "let it count steps or samples" in message


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
