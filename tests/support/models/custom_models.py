"""Models with their own steps, in the manner of public examples, small and without randomness."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np

from holdfast.runtime.model.replica import Microbatch

RANDOM = np.random.default_rng(2014)
X = RANDOM.normal(size=(13, 6)).astype(np.float32)
Y = RANDOM.normal(size=(13, 2)).astype(np.float32)
BATCH = Microbatch(X, Y, 5)
ALONE = Microbatch(X, None, 5)


def autoencoder(tf: SimpleNamespace, noise: float = 0.0) -> Any:
    """A variational autoencoder with trackers of its own, and no targets."""
    keras, t = tf.keras, tf.tensorflow

    class Autoencoder(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
            self.decoder = keras.Sequential([keras.Input((2,)), keras.layers.Dense(6)])
            self.generator = keras.random.SeedGenerator(3)
            self.total = keras.metrics.Mean(name="loss")
            self.divergence = keras.metrics.Mean(name="kl_loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.total, self.divergence]

        def train_step(self, data: Any) -> Any:
            with t.GradientTape() as tape:
                mean, spread = t.split(self.encoder(data), 2, axis=1)
                drawn = keras.random.normal(t.shape(mean), seed=self.generator)
                latent = mean + t.exp(0.5 * spread) * drawn * noise
                error = t.reduce_mean(t.reduce_sum((self.decoder(latent) - data) ** 2, axis=1))
                kl = -0.5 * t.reduce_mean(1 + spread - mean**2 - t.exp(spread))
                loss = error + kl
            gradients = tape.gradient(loss, self.trainable_weights)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
            self.total.update_state(loss)
            self.divergence.update_state(kl)
            return {"loss": self.total.result(), "kl_loss": self.divergence.result()}

    model = Autoencoder()
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    return model


def distilled(tf: SimpleNamespace) -> Any:
    """A student that learns from a teacher, with compiled metrics and a metric of each sample."""
    keras, t = tf.keras, tf.tensorflow

    class Distiller(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.teacher = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
            self.student = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])

        def call(self, inputs: Any) -> Any:
            return self.student(inputs)

        def train_step(self, data: Any) -> Any:
            x, y = data
            taught = self.teacher(x, training=False)
            with t.GradientTape() as tape:
                learned = self.student(x, training=True)
                own = self.compute_loss(y=y, y_pred=learned)
                loss = 0.3 * own + 0.7 * t.reduce_mean((taught - learned) ** 2)
            weights = self.student.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            for metric in self.metrics:
                if metric.name == "loss":
                    metric.update_state(loss)
                else:
                    metric.update_state(y, learned)
            return {m.name: m.result() for m in self.metrics} | {"distillation_loss": loss - own}

    model = Distiller()
    model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss="mse", metrics=["mae"])
    return model


def guided(tf: SimpleNamespace) -> Any:
    """The step of Keras's guide: metrics of its own, beside a compiled loss and its test step."""
    keras, t = tf.keras, tf.tensorflow

    class Guided(keras.Model):
        def __init__(self, *args: Any, **named: Any) -> None:
            super().__init__(*args, **named)
            self.loss_tracker = keras.metrics.Mean(name="loss")
            self.error = keras.metrics.MeanAbsoluteError(name="mae")

        def train_step(self, data: Any) -> Any:
            x, y = data
            with t.GradientTape() as tape:
                predicted = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=predicted)
            weights = self.trainable_variables
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            self.loss_tracker.update_state(loss)
            self.error.update_state(y, predicted)
            return {"loss": self.loss_tracker.result(), "mae": self.error.result()}

        @property
        def metrics(self) -> list[Any]:
            return [self.loss_tracker, self.error]

    inputs = keras.Input((6,))
    model = Guided(inputs, keras.layers.Dense(2)(inputs))
    model.compile(optimizer="adam", loss="mse")
    return model


def penalised(tf: SimpleNamespace) -> Any:
    """A loss with the norm of its own gradient, by nested tapes; logs are plain numbers."""
    keras, t = tf.keras, tf.tensorflow

    class Penalised(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.hidden = keras.layers.Dense(5, activation="tanh")
            self.out = keras.layers.Dense(2)

        def call(self, inputs: Any) -> Any:
            return self.out(self.hidden(inputs))

        def train_step(self, data: Any) -> Any:
            x, y = data
            with t.GradientTape() as tape:
                with t.GradientTape() as inner:
                    inner.watch(x)
                    predicted = self(x, training=True)
                slope = inner.gradient(predicted, x)
                penalty = t.reduce_mean(t.reduce_sum(slope**2, axis=1))
                loss = t.reduce_mean((predicted - y) ** 2) + 0.1 * penalty
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
            return {"loss": loss, "penalty": penalty}

        def test_step(self, data: Any) -> Any:
            x, y = data
            return {"worst": t.reduce_mean(t.abs(self(x, training=False) - y))}

    model = Penalised()
    model.compile(optimizer="adam")
    return model


def _players(tf: SimpleNamespace, *, in_turns: bool) -> Any:
    """A generator and a discriminator, whose gradients are taken in turns, or before updates."""
    keras, t = tf.keras, tf.tensorflow

    class Players(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.critic = keras.Sequential(
                [keras.Input((6,)), keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)]
            )
            self.maker = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6)])

        def compile(self, c_optimizer: Any, m_optimizer: Any, loss_fn: Any) -> None:
            super().compile()
            self.c_optimizer, self.m_optimizer, self.loss_fn = c_optimizer, m_optimizer, loss_fn
            self.c_metric = keras.metrics.Mean(name="c_loss")
            self.m_metric = keras.metrics.Mean(name="m_loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.c_metric, self.m_metric]

        def _critic_loss(self, real: Any) -> Any:
            seen = t.concat([self.maker(real[:, ::-1]), real], axis=0)
            ones = t.ones((t.shape(real)[0], 1))
            labels = t.concat([ones, 0 * ones], axis=0)
            return self.loss_fn(labels, self.critic(seen))

        def _maker_loss(self, real: Any) -> Any:
            judged = self.critic(self.maker(real[:, ::-1]))
            return self.loss_fn(t.zeros_like(judged), judged)

        def train_step(self, real: Any) -> Any:
            with t.GradientTape() as tape, t.GradientTape() as early:
                c_loss = self._critic_loss(real)
                m_loss = self._maker_loss(real)
            c_gradients = tape.gradient(c_loss, self.critic.trainable_weights)
            m_gradients = early.gradient(m_loss, self.maker.trainable_weights)
            self.c_optimizer.apply_gradients(
                zip(c_gradients, self.critic.trainable_weights, strict=True)
            )
            if in_turns:
                with t.GradientTape() as tape:
                    m_loss = self._maker_loss(real)
                m_gradients = tape.gradient(m_loss, self.maker.trainable_weights)
            self.m_optimizer.apply_gradients(
                zip(m_gradients, self.maker.trainable_weights, strict=True)
            )
            self.c_metric.update_state(c_loss)
            self.m_metric.update_state(m_loss)
            return {"c_loss": self.c_metric.result(), "m_loss": self.m_metric.result()}

    model = Players()
    model.compile(
        keras.optimizers.Adam(0.05),
        keras.optimizers.Adam(0.03),
        keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return model


def together(tf: SimpleNamespace) -> Any:
    """Two optimizers whose gradients are all taken before any update."""
    return _players(tf, in_turns=False)


def adversarial(tf: SimpleNamespace) -> Any:
    """Two optimizers that take turns."""
    return _players(tf, in_turns=True)


def trailing(tf: SimpleNamespace) -> Any:
    """A network with clipped weights, an averaged copy that follows it, and a counter of steps."""
    keras, t = tf.keras, tf.tensorflow

    class Trailing(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.network = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
            self.copy = keras.models.clone_model(self.network)
            self.steps = self.add_weight(shape=(), dtype="int64", trainable=False, name="steps")
            self.loss_tracker = keras.metrics.Mean(name="loss")

        def call(self, inputs: Any) -> Any:
            return self.copy(inputs)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with t.GradientTape() as tape:
                loss = t.reduce_mean((self.network(x, training=True) - y) ** 2)
            weights = self.network.trainable_weights
            self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            for weight in weights:
                weight.assign(t.clip_by_value(weight, -0.5, 0.5))
            self.steps.assign_add(1)
            for weight, slow in zip(self.network.weights, self.copy.weights, strict=True):
                slow.assign(0.9 * slow + 0.1 * weight)
            self.loss_tracker.update_state(loss)
            return {"loss": self.loss_tracker.result()}

    model = Trailing()
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def augmented(tf: SimpleNamespace, scale: float = 0.0) -> Any:
    """The step of Keras on data that the script changes first; in float16 if the loss is scaled."""
    keras = tf.keras

    class Augmented(keras.Sequential):
        def train_step(self, data: Any) -> Any:
            x, y = data
            return super().train_step((2.0 * x, y))

    hidden = keras.layers.Dense(3, dtype="mixed_float16" if scale else "float32")
    model = Augmented([keras.Input((6,)), hidden, keras.layers.Dense(2, dtype="float32")])
    optimizer = keras.optimizers.Adam(0.01)
    if scale:
        optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=scale)
    model.compile(optimizer=optimizer, loss="mse", metrics=["mae"])
    return model


def counting(tf: SimpleNamespace) -> Any:
    """A step that counts steps, samples and classes, and keeps a running mean."""
    keras, t = tf.keras, tf.tensorflow

    class Counting(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(2)

            def state(name: str, shape: tuple[int, ...] = (), dtype: str = "float32") -> Any:
                return self.add_weight(
                    shape=shape, dtype=dtype, initializer="zeros", trainable=False, name=name
                )

            self.steps, self.float_steps = state("steps", dtype="int32"), state("float_steps")
            self.seen, self.long_seen = state("seen"), state("long_seen", dtype="int64")
            self.positive, self.classes = state("positive", dtype="int64"), state("classes", (2,))
            self.mean = state("mean")
            self.has_begun = state("has_begun", dtype="bool")

        def call(self, inputs: Any) -> Any:
            return self.dense(inputs)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with t.GradientTape() as tape:
                loss = t.reduce_mean((self(x) - y) ** 2)
            weights = self.trainable_weights
            self.optimizer.apply(tape.gradient(loss, weights), weights)
            self.steps.assign_add(1)
            self.float_steps.assign_add(1.0)
            self.has_begun.assign(True)
            self.seen.assign_add(t.cast(t.shape(x)[0], t.float32))
            self.long_seen.assign_add(t.shape(x, t.int64)[0])
            self.positive.assign_add(t.reduce_sum(t.cast(y[:, 0] > 0, t.int64)))
            self.classes.assign_add(t.reduce_sum(t.cast(y > 0, t.float32), axis=0))
            self.mean.assign(0.9 * self.mean + 0.1 * t.reduce_mean(x**2))
            return {"loss": loss}

    model = Counting()
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    return model


def triplets(tf: SimpleNamespace) -> Any:
    """A loss for each sample, whose gradient is a sum over them, and a test step of its own."""
    keras, t = tf.keras, tf.tensorflow

    class Triplets(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
            self.loss_tracker = keras.metrics.Mean(name="loss")

        @property
        def metrics(self) -> list[Any]:
            return [self.loss_tracker]

        def _distances(self, data: Any) -> Any:
            anchor, near, far = (self.embedding(part) for part in t.split(data, 3, axis=1))
            apart = t.reduce_sum((anchor - near) ** 2 - (anchor - far) ** 2, -1)
            return t.maximum(apart + 0.5, 0.0)

        def train_step(self, data: Any) -> Any:
            with t.GradientTape() as tape:
                losses = self._distances(data)
            weights = self.embedding.trainable_weights
            self.optimizer.apply_gradients(
                zip(tape.gradient(losses, weights), weights, strict=True)
            )
            self.loss_tracker.update_state(losses)
            return {"loss": self.loss_tracker.result()}

        def test_step(self, data: Any) -> Any:
            self.loss_tracker.update_state(self._distances(data))
            return {"loss": self.loss_tracker.result()}

    model = Triplets()
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    return model


def share_above(tf: SimpleNamespace, level: float = 0.4) -> Any:
    """Return a metric that counts the targets above a level, which is a variable of its own."""
    ops = tf.keras.ops

    class ShareAbove(tf.keras.metrics.Metric):
        def __init__(self) -> None:
            super().__init__(name="share_above")
            self.level = self.add_variable((), lambda shape, dtype: level, name="level")
            self.above = self.add_variable((), "zeros", name="above")
            self.count = self.add_variable((), "zeros", name="count")

        def reset_state(self) -> None:
            self.above.assign(0.0)
            self.count.assign(0.0)

        def update_state(self, y: Any, prediction: Any, sample_weight: Any = None) -> None:
            self.above.assign_add(ops.sum(ops.cast(y > self.level, "float32")))
            self.count.assign_add(ops.cast(ops.size(y), "float32"))

        def result(self) -> Any:
            return self.above / self.count + self.level

    return ShareAbove()


def measured(tf: SimpleNamespace) -> Any:
    """The step of Keras on changed data, with a metric that keeps a setting in a variable."""
    model = augmented(tf)
    model.compile(optimizer="sgd", loss="mse", metrics=[share_above(tf)])
    return model


def logged(tf: SimpleNamespace, *, oddly: bool = False) -> Any:
    """A step whose logs have means and sums over the batch; ``oddly`` also what is neither."""
    keras, t = tf.keras, tf.tensorflow

    class Logged(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.out = keras.layers.Dense(2)
            self.steepest = keras.metrics.Mean(name="steepest")

        def call(self, inputs: Any) -> Any:
            return self.out(inputs)

        def train_step(self, data: Any) -> Any:
            x, y = data
            with t.GradientTape() as tape:
                errors = t.reduce_sum((self(x, training=True) - y) ** 2, axis=1)
                loss = t.reduce_mean(errors)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            shown = {
                "loss": loss,
                "error": t.reduce_sum(errors),
                "samples": t.shape(x)[0],
                "rate": 0.5,
            }
            if oddly:
                self.steepest.update_state(t.reduce_max(errors))
                norm = t.linalg.global_norm(gradients)
                shown |= {"norm": norm, "steepest": self.steepest.result()}
            return shown

        def test_step(self, data: Any) -> Any:
            x, y = data
            errors = t.reduce_sum((self(x, training=False) - y) ** 2, axis=1)
            return {"loss": t.reduce_mean(errors), "error": t.reduce_sum(errors)}

    model = Logged()
    model.compile(optimizer="sgd")
    return model
