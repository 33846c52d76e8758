"""What the tests of Keras replicas share: models, microbatches, and jobs in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from holdfast.recovery.reduction import PartialSums, maximal_nodes, plan_reduction
from holdfast.recovery.world import Assignment, World
from holdfast.runtime.exchange.memory import aligned_vector
from holdfast.runtime.model.replica import Microbatch

MICROBATCHES = 5
BATCH = 33
RANDOM = np.random.default_rng(1996)
IMAGES = RANDOM.normal(size=(66, 6, 6, 1)).astype(np.float32)
LABELS = (IMAGES.mean(axis=(1, 2, 3)) > 0).astype(np.int64)[:, None]
FIRST = Microbatch(IMAGES[:7], LABELS[:7], 0)
"""Seven samples, to compute anything at all with."""


def convolutional(tf: SimpleNamespace) -> Any:
    keras, layers = tf.keras, tf.keras.layers
    model = keras.Sequential(
        [
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(0.3),
            layers.Flatten(),
            layers.Dense(7, activation="relu", kernel_regularizer="l2"),
            layers.Dropout(0.2),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(1e-2, 20)
    model.compile(
        optimizer=keras.optimizers.AdamW(schedule, weight_decay=0.01, clipnorm=1.0),
        loss="binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(name="auc")],
    )
    return model


def build(tf: SimpleNamespace, make: Callable[[SimpleNamespace], Any], **data: Any) -> Any:
    """Return a replica as a new process would make it."""
    tf.keras.backend.clear_session()
    tf.keras.utils.set_random_seed(7)
    x, y = data.get("x", IMAGES[:7]), data.get("y", LABELS[:7])
    return tf.replica(make(tf), x, y)


def replica_of(
    model: Any,
    x: Any,
    y: Any,
    weights: Any = None,
    *,
    mixing: str = "REFUSED",
    validated: Microbatch | None = None,
) -> Any:
    """Return the replica of a model for microbatches like these samples."""
    from holdfast.runtime.model.batch_mixing import BatchMixing
    from holdfast.runtime.model.choose import replica_of_keras

    first = Microbatch(x, y, 0, weights)
    return replica_of_keras(model, first, BatchMixing[mixing], lambda: validated)


def dense(tf: SimpleNamespace, *units: int, **compiled: Any) -> Any:
    """Return a small compiled classifier of images, with layers of so many units."""
    layers = tf.keras.layers
    sizes = units or (3,)
    model = tf.keras.Sequential([layers.Flatten(), *map(layers.Dense, sizes), layers.Dense(1)])
    model.compile(**{"optimizer": "sgd", "loss": "mse", **compiled})
    return model


def microbatch(step: int, m: int) -> Microbatch:
    """Microbatches of 7 and 6 samples; the second batch follows the first."""
    ids = np.array_split(np.arange(BATCH), MICROBATCHES)[m] + step % 2 * BATCH
    return Microbatch(IMAGES[ids], LABELS[ids], 1000 * step + m)


def contribution(replica: Any, batch: Microbatch, fill: float = np.nan) -> np.ndarray:
    out = aligned_vector(replica.shape.total)
    out[:] = fill
    replica.contribute(batch, out)
    return out


def total_of(replicas: Sequence[Any], assignment: Assignment, step: int, *, backwards: bool) -> Any:
    """Return the sum of a step's microbatches, computed by their owners and folded in the tree."""
    world = World(1, tuple(range(len(replicas))), len(replicas))
    roots = {}
    for worker, replica in enumerate(replicas):
        size = replica.shape.total
        sums = PartialSums(MICROBATCHES, lambda size=size: aligned_vector(size))
        owned = assignment.owned_by(worker)
        for m in owned[::-1] if backwards else owned:
            leaf = sums.buffer()
            replica.contribute(microbatch(step, m), leaf)
            sums.add_leaf(m, leaf)
        nodes = maximal_nodes(owned, MICROBATCHES)
        roots |= {n: v.copy() for n, v in zip(nodes, sums.take(nodes), strict=True)}
    plan = plan_reduction(assignment, world, MICROBATCHES)
    vectors = [roots[root.node] for root in plan.roots]
    for left, right in plan.combines:
        vectors[left] += vectors[right]
    return vectors[0]


def train(
    replicas: Sequence[Any], owners: Sequence[int], steps: range, *, backwards: bool = False
) -> list[bytes]:
    """Train all replicas together and return the bytes of each step's total."""
    totals = []
    for step in steps:
        total = total_of(replicas, Assignment(tuple(owners)), step, backwards=backwards)
        totals.append(total.tobytes())
        for replica in replicas:
            mine = aligned_vector(total.size)
            mine[:] = total
            replica.apply(mine, BATCH)
    return totals


def bytes_of(state: Any) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


def copy_of(state: Any) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in state.items()}
