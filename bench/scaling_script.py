"""One process of a job that bench/scaling.py times: the same network, trained in one of two ways.

    python scaling_script.py holdfast --workers 2 --batches 100 200 400

``holdfast`` is an ordinary Keras script, which ``holdfast run`` starts.  ``horovod`` is a rank of
Horovod, which mpirun starts with a Python of its own.  Nothing of holdfast is imported here.

One process of the job writes ``RESULT.PID``, where RESULT is the environment's: for each batch of
one worker the seconds of each block of steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

RESULT_VARIABLE = "HOLDFAST_BENCH_RESULT"
SIDE = 24
"""Pixels of the tutorial's crops."""
CLASSES = 10
PARAMETERS = 1_068_298
RATE = 0.001
BLOCKS = 5
"""Blocks of steps of each batch; the first warms up and does not count."""
IMAGES_A_BLOCK = 1200
"""Images of one worker in a block: a second or two of one core."""

Blocks = list[float]


def steps_of(batch: int, images_a_block: int) -> int:
    """Return the steps in a block."""
    return max(2, images_a_block // batch)


def images(count: int) -> tuple[Any, Any]:
    """Return seeded noise in the shape of the data, with labels."""
    random = np.random.default_rng(1)
    x = random.standard_normal((count, SIDE, SIDE, 3), np.float32)
    return x, random.integers(CLASSES, size=count)


def train_with_holdfast(workers: int, steps: Mapping[int, int]) -> dict[int, Blocks]:
    """Train with ``fit``, whose batches are those of all workers together.

    ``steps`` has the steps of a block for each batch of one worker.
    """
    import keras
    from models import convolutional

    moments: list[float] = []

    def note(*_arguments: object, **_named: object) -> None:
        moments.append(time.monotonic())

    keras.utils.set_random_seed(1)
    model = convolutional(SIDE)
    assert model.count_params() == PARAMETERS
    clock = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_epoch_end=note)
    found = {}
    for batch, count in steps.items():
        whole = batch * workers
        x, y = images(count * whole)
        moments.clear()
        model.fit(x, y, batch_size=whole, epochs=BLOCKS, callbacks=[clock], verbose=0)
        pairs = list(zip(moments[::2], moments[1::2], strict=True))
        found[batch] = [end - begin for begin, end in pairs]
    return found


def train_with_horovod(_workers: int, steps: Mapping[int, int]) -> dict[int, Blocks]:
    """Train with a tape of Horovod's, which sums the gradients."""
    import horovod.tensorflow as hvd  # type: ignore[import-not-found, unused-ignore]
    import tensorflow as tf
    from models import convolutional

    hvd.init()
    model = convolutional(SIDE)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = tf.keras.optimizers.SGD(RATE, momentum=0.9)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = loss(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    def meet() -> None:
        hvd.allreduce(tf.constant(0.0), name="meet")

    found = {}
    for batch, count in steps.items():
        x, y = images(count * batch)
        order = np.random.default_rng(hvd.rank()).permutation(len(x))

        def block(batch: int = batch, x: Any = x, y: Any = y, order: Any = order) -> None:
            for ids in order.reshape(-1, batch):
                float(step(x[ids], y[ids]))

        found[batch] = _timed(block, meet)
    meet()
    return found if hvd.rank() == 0 else {}


def _timed(block: Callable[[], None], barrier: Callable[[], object]) -> Blocks:
    """Return the seconds of each block, from when all ranks begin to when all have ended."""
    seconds = []
    for _ in range(BLOCKS):
        barrier()
        begin = time.monotonic()
        block()
        barrier()
        seconds.append(time.monotonic() - begin)
    return seconds


WAYS: Mapping[str, Callable[[int, Mapping[int, int]], dict[int, Blocks]]] = {
    "holdfast": train_with_holdfast,
    "horovod": train_with_horovod,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--batches", type=int, nargs="+", required=True)
    parser.add_argument("--images", type=int, default=IMAGES_A_BLOCK)
    options = parser.parse_args()
    steps = {batch: steps_of(batch, options.images) for batch in options.batches}
    found = WAYS[options.way](options.workers, steps)
    if found:
        # Each worker has seen the same steps, so any of their files will do; each host counts its
        # processes by itself.
        result = os.environ[RESULT_VARIABLE]
        path = Path(f"{result}.{os.uname().nodename}.{os.getpid()}")
        path.write_text(json.dumps(found), encoding="utf-8")
        path.replace(result)


if __name__ == "__main__":
    main()
