"""Overrides all that Keras's classes let one override, and prints what ``fit`` has called.

Twice: the step is left to Keras, or overridden too.  With the argument ``all`` it overrides what
holdfast refuses, too.
"""

import functools
import json
import sys
from types import FunctionType

import keras
import numpy as np

SPECIAL = {"__call__", "__getitem__", "__len__", "__iter__"}
OF_STEP = {"train_step", "test_step", "trainable_weights", "trainable_variables", "scale_loss"}
REFUSED = set() if "all" in sys.argv else {"evaluate", "distribute_strategy"}

seen = set()
is_on = False


def noted(name, plain):
    @functools.wraps(plain, updated=())
    def method(*args, **arguments):
        if is_on:
            seen.add(name)
        return plain(*args, **arguments)

    return method


def is_hook(base, plain):
    """Return whether Keras calls it although it stands for nothing yet, or it does something."""
    is_default = getattr(plain, "_is_default", False)
    return isinstance(plain, FunctionType) and (base is keras.callbacks.Callback or not is_default)


def overriding(base, derived, left_out=()):
    """Return a class in which each method and property of ``base`` leaves a trace."""
    found = {}
    for name in dir(base):
        if (name.startswith("_") and name not in SPECIAL) or name in left_out:
            continue
        kind = next(kind for kind in derived.__mro__ if name in vars(kind))
        plain, told = vars(kind)[name], f"{base.__name__}.{name}"
        if isinstance(plain, property):
            found[name] = property(noted(told, plain.fget), plain.fset)
        elif is_hook(base, plain):
            found[name] = noted(told, plain)
    return type(f"My{base.__name__}", (derived,), found)


Layer = overriding(keras.layers.Layer, keras.layers.Dense)
Loss = overriding(keras.losses.Loss, keras.losses.MeanSquaredError)
Metric = overriding(keras.metrics.Metric, keras.metrics.MeanAbsoluteError)
Regularizer = overriding(keras.regularizers.Regularizer, keras.regularizers.L2)
Constraint = overriding(keras.constraints.Constraint, keras.constraints.NonNeg)
Schedule = overriding(
    keras.optimizers.schedules.LearningRateSchedule, keras.optimizers.schedules.ExponentialDecay
)
Callback = overriding(keras.callbacks.Callback, keras.callbacks.Callback)


class TwoLayers(keras.Model):
    def __init__(self):
        super().__init__()
        parts = {"kernel_regularizer": Regularizer(1e-3), "kernel_constraint": Constraint()}
        self.first, self.second = Layer(3, activation="tanh", **parts), keras.layers.Dense(1)

    def call(self, x, training=False):
        self.add_loss(1e-3 * keras.ops.mean(x * x))
        return self.second(self.first(x))


class Rows(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        x = np.arange(16, dtype="float32").reshape(8, 2) / 16 + index
        return x, x[:, :1]


Rows = overriding(keras.utils.PyDataset, Rows)
for how, left_out in (("plain", OF_STEP | REFUSED), ("own", REFUSED)):
    keras.utils.set_random_seed(3)
    model = overriding(keras.Model, TwoLayers, left_out)()
    kind = overriding(keras.optimizers.Optimizer, keras.optimizers.SGD, left_out)
    given = {"momentum": 0.5, "weight_decay": 1e-3, "use_ema": True, "clipnorm": 1.0}
    model.compile(kind(Schedule(0.01, 2, 0.9), **given), Loss(), metrics=[Metric()])
    given = {"validation_data": Rows()[0], "epochs": 2, "verbose": 0, "callbacks": [Callback()]}
    seen.clear()
    is_on = True
    history = model.fit(Rows(), shuffle=False, **given)
    is_on = False
    print("SEEN", how, json.dumps(sorted(seen)))
    print("LOSS", how, json.dumps(history.history))
