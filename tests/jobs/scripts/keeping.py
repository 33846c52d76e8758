"""The custom replica of the examples: all checkpoints are kept, and each step takes a while."""

from __future__ import annotations

import argparse
import time

import numpy as np

from examples import load
from holdfast import Trainer

example = load("02_custom_replica")


class Paced(example.SoftmaxRegression):  # type: ignore[misc,name-defined]
    """Takes its time for an update."""

    def apply(self, total: np.ndarray, samples: int) -> None:
        super().apply(total, samples)
        time.sleep(options.pause_ms / 1e3)


parser = argparse.ArgumentParser()
for name in ("samples", "global-batch", "epochs", "save-every", "features", "pause-ms"):
    parser.add_argument(f"--{name}", type=int, required=True)
options = parser.parse_args()

Trainer(
    lambda: Paced(options.features, 10),
    example.clusters(options.samples, options.features, 10),
    global_batch=options.global_batch,
    epochs=options.epochs,
    validation=example.clusters(100, options.features, 10),
    save_every=options.save_every,
    keep_every=options.save_every,
).run()
