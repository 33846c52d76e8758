"""A trial of a sweep without Keras: the custom replica of the examples, an epoch at a time.

With ``--fails`` the trial of that number fails.  Each worker says which parameters it has.
"""

from __future__ import annotations

import argparse
from types import SimpleNamespace

import numpy as np

import holdfast
from examples import load

example = load("02_custom_replica")
parser = argparse.ArgumentParser()
parser.add_argument("--fails", type=int)
parser.add_argument("--epochs", type=int, default=2)
options = parser.parse_args()

trial = holdfast.trial()
rate = trial.suggest_float("rate", 1e-3, 1.0, log=True)
batch = trial.suggest_categorical("batch", [32, 64])
if trial.number is not None and trial.number == options.fails:
    raise LookupError("no such sample")

example.LEARNING_RATE = np.float32(rate)
data = example.clusters(256, 16, 10)
x, y = data.read(np.arange(256))[:2]
replica = example.SoftmaxRegression(16, 10)
for epoch in range(options.epochs):
    holdfast.Trainer(replica, data, global_batch=batch, epochs=1).run()
    sums = np.zeros(2)
    replica.evaluate(SimpleNamespace(x=x, y=y), sums)  # the same on all workers and launches
    trial.report(sums[0] / 256, epoch)
    if trial.should_prune():
        break
print(f"rate {rate!r} batch {batch}")
