"""One process of a job that bench/peers.py times: the same models, trained in one of six ways.

    python peers_script.py keras dnn --workers 2 --batches "[[128, 120]]" --blocks 6

``keras`` is an ordinary Keras script, for plain Python and ``holdfast run``.  The others are ranks
of Horovod, which has a Python of its own, ranks of a bare mpi4py loop (`bare.py`), or processes of
TensorFlow's parameter servers.  Nothing of holdfast is imported here, but by the bare loop.

Each process adds one line of JSON to the file that the environment names: for each batch of one
worker its blocks of steps as pairs (beginning, end), in seconds of the machine's monotonic clock.
With ``--first-step`` there is one block, which begins and ends when the first step has ended.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from models import CLASSES, RATE, SUBJECTS

PIPELINE = "pipeline"
"""The dnn of ``models``, fed by tf.data: bytes are shuffled, batched, and scaled in map()."""

Blocks = list[tuple[float, float]]


def scaled(x: Any, y: Any) -> tuple[Any, Any]:
    return tf.cast(x, tf.float32) / 255.0, y


def pipeline(x: Any, y: Any, batch: int) -> Any:
    pixels = np.clip(128 + 40 * x, 0, 255).astype(np.uint8)
    dataset = tf.data.Dataset.from_tensor_slices((pixels, y))
    return dataset.shuffle(1000, seed=1).batch(batch).map(scaled).prefetch(2)


def build(options: argparse.Namespace) -> Any:
    keras.utils.set_random_seed(1)
    model = SUBJECTS["dnn" if options.model == PIPELINE else options.model].build()
    if options.adam:
        model.compile(optimizer=keras.optimizers.Adam(RATE), loss=model.loss)
    return model


def samples(options: argparse.Namespace, count: int) -> tuple[Any, Any]:
    """Return seeded noise in the shape of the model's data, with labels."""
    random = np.random.default_rng(1)
    subject = SUBJECTS["dnn" if options.model == PIPELINE else options.model]
    return subject.sample(random, count), random.integers(CLASSES, size=count)


def fit(options: argparse.Namespace, model: Any, batch: int, steps: int, *others: Any) -> Blocks:
    """Train with ``fit``; return an epoch's beginning and end as a block."""
    moments: list[float] = []

    def note(*_arguments: object, **_named: object) -> None:
        moments.append(time.monotonic())

    x, y = samples(options, steps * batch)
    if options.first_step:
        clock = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    else:
        clock = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_epoch_end=note)
    common = {"epochs": options.blocks, "callbacks": [clock, *others], "verbose": 0}
    if options.model == PIPELINE:
        model.fit(pipeline(x, y, batch), **common)
    else:
        model.fit(x, y, batch_size=batch, **common)
    if options.first_step:
        return [(moments[0], moments[0])]
    return list(zip(moments[::2], moments[1::2], strict=True))


def with_keras(options: argparse.Namespace) -> dict[int, Blocks]:
    """Train with ``fit``, whose batches are those of all workers together."""
    model = build(options)
    return {
        batch: fit(options, model, batch * options.workers, steps)
        for batch, steps in options.batches
    }


def legacy_optimizer(options: argparse.Namespace) -> Any:
    """Return an optimizer of the kind that Horovod was written for, which is the faster one."""
    kinds = tf.keras.optimizers.legacy
    return kinds.Adam(RATE) if options.adam else kinds.SGD(RATE, momentum=0.9)


def with_horovods_fit(options: argparse.Namespace) -> dict[int, Blocks]:
    """Train with ``fit`` and an optimizer of Horovod's; each rank has data of its own."""
    import horovod.tensorflow.keras as hvd  # type: ignore[import-not-found, unused-ignore]

    hvd.init()
    model = build(options)
    model.compile(hvd.DistributedOptimizer(legacy_optimizer(options)), loss=model.loss)
    alike = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    found = {batch: fit(options, model, batch, steps, alike) for batch, steps in options.batches}
    return found if hvd.rank() == 0 else {}


def with_horovods_tape(options: argparse.Namespace) -> dict[int, Blocks]:
    """Train with a tape of Horovod's, in one graph, on tensors that were made before."""
    import horovod.tensorflow as hvd  # type: ignore[import-not-found, unused-ignore]

    hvd.init()
    model, optimizer = build(options), legacy_optimizer(options)
    hvd.broadcast_variables(model.variables, root_rank=0)

    @tf.function  # type: ignore[untyped-decorator, unused-ignore]
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            value = model.loss(y, model(x, training=True))
        gradients = hvd.DistributedGradientTape(tape).gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    def meet() -> None:
        hvd.allreduce(tf.constant(0.0), name="meet")

    found = {}
    for batch, steps in options.batches:
        found[batch] = timed(options, step, tensors(options, batch, steps), meet)
    return found if hvd.rank() == 0 else {}


def with_mpi4py(options: argparse.Namespace) -> dict[int, Blocks]:
    """Train with a bare loop of mpi4py."""
    from bare import BareReplica
    from mpi4py import MPI

    comm, found = MPI.COMM_WORLD, {}
    for batch, steps in options.batches:
        step = BareReplica(build(options), comm).step
        found[batch] = timed(options, step, tensors(options, batch, steps), comm.Barrier)
    return found if comm.rank == 0 else {}


def with_servers(options: argparse.Namespace) -> dict[int, Blocks]:
    """Train with TensorFlow's parameter servers; one process of them tells."""
    from peers_servers import Servers

    servers = Servers(lambda: build(options), RATE)
    found = {}
    for batch, steps in options.batches:
        x, y = samples(options, steps * batch)
        step, meet = servers.step_of(x, y, batch, synchronous=options.way == "servers-sync")
        found[batch] = timed(options, step, [()] * steps, meet)
    return found


def tensors(options: argparse.Namespace, batch: int, steps: int) -> list[tuple[Any, Any]]:
    """Return the batches of a block, made before the clock starts."""
    split = (tf.split(tf.constant(whole), steps) for whole in samples(options, steps * batch))
    return list(zip(*split, strict=True))


def timed(
    options: argparse.Namespace,
    step: Callable[..., object],
    batches: Sequence[tuple[Any, ...]],
    meet: Callable[[], object],
) -> Blocks:
    """Run the blocks; each lasts from when all ranks begin to when all have ended."""
    moments = []
    for _ in range(options.blocks):
        meet()
        begin = time.monotonic()
        for batch in batches:
            step(*batch)
        meet()
        moments.append((begin, time.monotonic()))
    return moments


WAYS: Mapping[str, Callable[[argparse.Namespace], dict[int, Blocks]]] = {
    "keras": with_keras,
    "horovod-fit": with_horovods_fit,
    "horovod-tape": with_horovods_tape,
    "mpi4py": with_mpi4py,
    "servers-sync": with_servers,
    "servers-async": with_servers,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("model")
    parser.add_argument("--adam", action="store_true")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--batches", type=json.loads, help="pairs: of one worker, and its steps in a block"
    )
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--first-step", action="store_true")
    options = parser.parse_args()
    if hosts := os.environ.get("HOLDFAST_BENCH_HOSTS", "").split():
        # Namespaces share the cores.  A waiting rank of Open MPI yields its core to no other host.
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[hosts.index(socket.gethostname()) :: len(hosts)])
    if found := WAYS[options.way](options):
        # One write to the end of a file mixes with no other, on whatever host it is, and needs no
        # name of a process: hosts count theirs by themselves.
        file = os.open(os.environ["HOLDFAST_BENCH_RESULT"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, f"{json.dumps(found)}\n".encode())


if __name__ == "__main__":
    main()
