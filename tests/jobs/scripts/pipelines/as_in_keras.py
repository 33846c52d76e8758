"""Trainings whose steps or data are unusual, as plain Keras does them; prints a line for each."""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

random = np.random.default_rng(0)
X = random.normal(size=(64, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def dense(*layers, **arguments):
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1, **arguments)])
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 4:
            self.model.stop_training = True


class Hooks(keras.callbacks.Callback):
    """Remembers the hooks about batches, and what they see of a metric."""

    def __init__(self, metric="loss"):
        super().__init__()
        self.hooks, self.seen, self.metric = [], [], metric

    def on_train_batch_begin(self, batch, logs=None):
        self.hooks.append(f"begin {batch}")

    def on_train_batch_end(self, batch, logs=None):
        self.hooks.append(f"end {batch}")
        self.seen.append(logs[self.metric])


class ThreeParts(keras.Model):
    """Trains on (x, y, weights), and validates on (x, y)."""

    def __init__(self):
        super().__init__()
        self.dense, self.mean = keras.layers.Dense(1), keras.metrics.Mean(name="l")

    def call(self, x):
        return self.dense(x)

    def train_step(self, data):
        x, y, weights = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(weights * (self.dense(x) - y) ** 2)
        weights = self.dense.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        self.mean.update_state(loss)
        return {"l": self.mean.result()}

    def test_step(self, data):
        x, y = data
        self.mean.update_state(tf.reduce_mean((self.dense(x) - y) ** 2))
        return {"l": self.mean.result()}


def three_parts():
    keras.utils.set_random_seed(1)
    model = ThreeParts()
    model.dense.build((None, 4))
    model.compile(keras.optimizers.SGD(0.1))
    weights = np.ones((64, 1), "float32")
    return model.fit(
        X,
        Y,
        sample_weight=weights,
        batch_size=16,
        epochs=2,
        shuffle=False,
        validation_data=(X[:40], Y[:40]),
        verbose=0,
    )


def batch_of_one():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    return model.fit(X[:5], Y[:5, 0], epochs=2, batch_size=1, shuffle=False, verbose=0)


def sum_loss():
    model = dense()
    model.compile(
        keras.optimizers.SGD(0.1), lambda y, p: keras.ops.sum(keras.ops.square(y - p)) / 64
    )
    return model.fit(X[:60], Y[:60], epochs=2, batch_size=16, shuffle=False, verbose=0)


class NeverReset(keras.metrics.MeanSquaredError):
    def __init__(self):
        super().__init__(name="mse")
        super().reset_state()

    def reset_state(self):
        """Let the metric go on over epochs, validations and trainings."""


def going_on():
    model, hooks = dense(), Hooks("mse")
    model.compile(keras.optimizers.SGD(0.05), "mse", metrics=[NeverReset(), "mae"])
    given = {"batch_size": 16, "shuffle": False, "callbacks": [hooks], "verbose": 0}
    first = model.fit(X, Y, epochs=2, validation_data=(X[:10], Y[:10]), **given).history
    evaluated = model.evaluate(X, Y, verbose=0, return_dict=True)["mse"]
    more = model.fit(X, Y, epochs=1, **given).history
    return {**first, "evaluated": [evaluated], "more": more["mse"], "seen": hooks.seen}


class Tracked(keras.Model):
    """Its loss is that of its tracker, as in the documentation of Keras."""

    def __init__(self, *args, **arguments):
        super().__init__(*args, **arguments)
        self.tracker = keras.metrics.Mean(name="loss")

    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        loss = keras.ops.mean((y_pred - y) ** 2) + keras.ops.sum(self.losses)
        self.tracker.update_state(loss)
        return loss

    def reset_metrics(self):
        self.tracker.reset_state()

    @property
    def metrics(self):
        return [self.tracker]


class Multiplied(keras.Model):
    """Tracks a multiple of its loss, and hears of training only where nothing validates."""

    def __init__(self, *args, **arguments):
        super().__init__(*args, **arguments)
        self.custom = keras.metrics.Mean(name="custom")
        self.validates = True

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        assert training or self.validates
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        self.custom.update_state(loss * 4)
        return loss


def own_trackers():
    found = {}
    given = {"epochs": 2, "batch_size": 16, "shuffle": False, "verbose": 0}
    for name, kind, loss, regularizer in (
        ("tracked", Tracked, "mse", "l2"),
        ("mean", Multiplied, "mse", "l2"),
        ("sum", Multiplied, keras.losses.MeanSquaredError(reduction="sum"), None),
    ):
        keras.utils.set_random_seed(1)
        x = keras.Input((4,))
        model = kind(x, keras.layers.Dense(1, kernel_regularizer=regularizer)(x))
        model.compile(keras.optimizers.SGD(0.01), loss)
        model.validates = False
        first = model.fit(X[:40], Y[:40], **given).history
        model.validates = True
        more = model.fit(X[:40], Y[:40], validation_data=(X[40:], Y[40:]), **given).history
        for of in more:
            found[f"{name} {of}"] = first.get(of, []) + more[of]
    return found


def executions():
    """Three steps between two hooks: 8 steps of a pass, and 4 that become 6."""
    model, hooks = dense(), Hooks()
    model.compile(keras.optimizers.SGD(0.05), "mse", steps_per_execution=3)
    given = {"epochs": 2, "callbacks": [hooks], "verbose": 0}
    first = model.fit(X, Y, batch_size=8, shuffle=False, **given)
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8).repeat()
    more = model.fit(dataset, steps_per_epoch=4, **given)
    loss = first.history["loss"] + more.history["loss"]
    return {"loss": loss, "hooks": hooks.hooks, "seen": hooks.seen}


def no_weights():
    return dense(keras.layers.Rescaling(0.5), trainable=False).fit(X, Y, batch_size=16, verbose=0)


def infinite():
    model = dense(kernel_initializer=keras.initializers.Constant(1e30))
    return model.fit(X + 1, Y, verbose=0, callbacks=[keras.callbacks.TerminateOnNaN()])


def endless_generator():
    def batches():
        while True:
            yield X[:8], Y[:8]

    return dense().fit(batches(), callbacks=[Stop()], verbose=0)


def endless_dataset():
    dataset = tf.data.Dataset.from_tensor_slices((X, Y)).batch(32).repeat()
    return dense().fit(dataset, callbacks=[Stop()], verbose=0)


def unknown_repeated():
    """As TFRecord files do, which do not know how many records they hold."""
    dataset = tf.data.Dataset.from_tensor_slices((X[:20], Y[:20])).filter(lambda *_: True)
    return dense().fit(dataset.batch(8).repeat(), epochs=2, steps_per_epoch=2, verbose=0)


def limits():
    keras.config.set_max_epochs(2)
    keras.config.set_max_steps_per_epoch(3)
    found = dense().fit(
        X, Y, batch_size=8, epochs=4, shuffle=False, validation_data=(X, Y), verbose=0
    )
    keras.config.set_max_epochs(None)
    keras.config.set_max_steps_per_epoch(None)
    return found


def class_weight():
    return dense().fit(X, Y > 0, class_weight={"0": 1.0, "1": 5.0}, shuffle=False, verbose=0)


for name in sys.argv[1:]:
    found = globals()[name]()
    print("FOUND", json.dumps({name: getattr(found, "history", found)}))
