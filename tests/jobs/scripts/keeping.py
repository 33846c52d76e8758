"""The custom replica of the examples: all checkpoints are kept, and each step takes a while."""

from __future__ import annotations

import argparse
import importlib.util
import time
from pathlib import Path

import numpy as np

from holdfast import Trainer

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "02_custom_replica.py"
SPEC = importlib.util.spec_from_file_location("example", EXAMPLE)
assert SPEC is not None
assert SPEC.loader is not None
example = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(example)


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
