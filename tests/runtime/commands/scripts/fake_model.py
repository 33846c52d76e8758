"""Models without Keras: what the export asks of one, and nothing more."""
# ruff: noqa: ANN001, ANN201, ANN204

import json

import numpy as np

from holdfast import ArrayData, Trainer


class Variable:
    def __init__(self, path, shape, dtype="float32"):
        self.path, self.shape, self.dtype = path, shape, dtype
        self.name = path.rpartition("/")[2]
        self.value = np.zeros(shape, dtype)

    def assign(self, value):
        self.value = value


class Optimizer:
    built = True

    def __init__(self):
        self.variables = [Variable("sgd/iterations", (), "int64")]


class Model:
    built = True

    def __init__(self, units=7, optimizer=None):
        self.trainable_variables = [
            Variable("dense/bias", (units,)),
            Variable("dense/kernel", (500, units)),
        ]
        self.non_trainable_variables = [Variable("dropout/seed_generator_state", (2,), "int64")]
        self.variables = self.trainable_variables + self.non_trainable_variables
        self.optimizer = optimizer

    def save_weights(self, path):
        variables = [*self.trainable_variables, *self.optimizer.variables]
        path.write_text(json.dumps({v.path: float(v.value.sum(dtype=float)) for v in variables}))


def model():
    return Model(optimizer=Optimizer())


def not_compiled():
    return Model()


def wider():
    return Model(units=8)


def not_built():
    made = model()
    made.built = False
    return made


def fails():
    raise RuntimeError("no luck\ntoday")


def no_model():
    return 5


def trains():
    Trainer(model, ArrayData(np.zeros(3), np.zeros(3)), global_batch=1, epochs=1).run()


not_a_function = 5

trains()
raise AssertionError("an export must not get here")
