"""An ordinary Keras script, which bench/fit.py runs with plain Python and under holdfast.

    python fit_script.py MODEL --batch 32 --epochs 5 --steps 40 [--first-step]

It writes ``RESULT.PID``, where RESULT is the environment's.  With ``--first-step`` that is the
moment at which the first step had ended, else the beginning and end of each epoch, in seconds
of the machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from models import CLASSES, SUBJECTS

PIPELINE = "pipeline"
"""The dnn of ``models``, fed by tf.data: bytes are shuffled, batched, and scaled in map()."""

moments: list[float] = []


def note(*_arguments: object, **_named: object) -> None:
    moments.append(time.monotonic())


def scaled(x: Any, y: Any) -> tuple[Any, Any]:
    return tf.cast(x, tf.float32) / 255.0, y


def pipeline(x: Any, y: Any, batch: int) -> Any:
    pixels = np.clip(128 + 40 * x, 0, 255).astype(np.uint8)
    dataset = tf.data.Dataset.from_tensor_slices((pixels, y))
    return dataset.shuffle(1000, seed=1).batch(batch).map(scaled).prefetch(2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--first-step", action="store_true")
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    subject = SUBJECTS["dnn" if options.model == PIPELINE else options.model]
    random = np.random.default_rng(1)
    x = subject.sample(random, options.steps * options.batch)
    y = random.integers(CLASSES, size=len(x))
    if options.first_step:
        clock = keras.callbacks.LambdaCallback(on_train_batch_end=note)
    else:
        clock = keras.callbacks.LambdaCallback(on_epoch_begin=note, on_epoch_end=note)
    model = subject.build()
    common = {"epochs": options.epochs, "callbacks": [clock], "verbose": 2}
    if options.model == PIPELINE:
        model.fit(pipeline(x, y, options.batch), **common)
    else:
        model.fit(x, y, batch_size=options.batch, **common)
    Path(f"{os.environ['HOLDFAST_BENCH_RESULT']}.{os.getpid()}").write_text(json.dumps(moments))


if __name__ == "__main__":
    main()
