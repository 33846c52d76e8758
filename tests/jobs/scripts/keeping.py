"""The custom replica of the examples: all checkpoints are kept, and each step takes a while."""

from __future__ import annotations

import time

import numpy as np

from examples import flags_of_workload, load, train

example = load("02_custom_replica")


class Paced(example.SoftmaxRegression):  # type: ignore[misc,name-defined]
    """Takes its time for an update."""

    def apply(self, total: np.ndarray, samples: int) -> None:
        super().apply(total, samples)
        time.sleep(options.pause_ms / 1e3)


parser = flags_of_workload("pause-ms")
options = parser.parse_args()

train(example, lambda: Paced(options.features, 10), options, keep_every=options.save_every)
